"""From what the user wrote as DATA to image sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nearsight.datasets.archive import ARCHIVE_SUFFIXES, UNREADABLE, unpacked
from nearsight.datasets.folder import UnknownData, open_folder
from nearsight.datasets.labelled import LabelledImages, LabelledSplits
from nearsight.datasets.listed import TABLE_SUFFIXES, listings_of, open_listed, read_listing
from nearsight.datasets.named import NAMES, open_clothing, open_named
from nearsight.datasets.shards import expand_braces, looks_like_shard, open_shards
from nearsight.datasets.splitting import make_splits
from nearsight.datasets.tables import names_pictures, open_npz, open_parquet
from nearsight.images.files import PassedOver
from nearsight.images.formats import IMAGE_SUFFIXES
from nearsight.images.imageset import pick_split
from nearsight.text import printable

_ACCEPTED = f"a folder, .csv, .tsv, .txt, .npz, .parquet, .tar or .zip, 'clothing', or one of {', '.join(NAMES)}"


def open_data(
    source: str | Path,
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    val_from: str = "data",
    label_column: str = "",
    download: bool = False,
) -> LabelledSplits:
    """Recognise a data source and open it.

    source: an image folder, a table of names and labels beside pictures or a folder with one, a .npz, .parquet files,
        WebDataset .tar shards, an archive of an image folder, the name of a known dataset (optionally `name:folder`),
        or 'clothing', which comes with the package. A path of that name wins over the name.
    seed, val_fraction: how val is taken from train where the source has none of its own, or val_from is "train".
    label_column: of a table, where several columns may have the labels.
    download: known datasets may be fetched from the network.
    """
    kind, parts, passed, listed = _find(str(source), download, label_column)
    if label_column and not listed:
        raise ValueError(f"{kind}: there is no table of names and labels whose column {label_column!r} could be taken")
    splits = make_splits(kind, parts, seed=seed, val_fraction=val_fraction, val_from=val_from)
    return replace(splits, notes=passed.notes(sum(map(len, parts.values()))), not_read=passed.counts)


class OneSet(NamedTuple):
    """Labelled images to evaluate on: the split they are ('all' of a set without any), where they come from, and what
    was not read."""

    images: LabelledImages
    split: str
    origin: str
    notes: tuple[str, ...]


def open_images(source: str | Path, *, split: str = "", label_column: str = "", download: bool = False) -> OneSet:
    """One labelled set, to evaluate on: the given split, or the only one; nothing is split off.

    Without `split`, a source with several gives its test split, or else val.
    """
    kind, parts, passed, _ = _find(str(source), download, label_column)
    chosen = pick_split(parts, split, ("test", "val", "train"))
    images = parts[chosen]
    if not len(images):
        raise ValueError(f"{kind}: its {chosen} split has no images")
    notes = passed.notes(sum(map(len, parts.values())))
    if len(parts) == 1 and not split:
        return OneSet(images, "all", f"{kind}: all {len(images)} images", notes)
    return OneSet(images, chosen, f"{kind}: {len(images)} images of {chosen}", notes)


class _Found(NamedTuple):
    """What a source is, in words; its splits; the files of it that are not read; whether a table has the labels."""

    kind: str
    parts: dict[str, LabelledImages]
    passed: PassedOver
    listed: bool = False


def _find(source: str, download: bool, label_column: str) -> _Found:
    if source == "clothing" and not Path(source).exists():
        return _Found("clothing (bundled)", open_clothing(), PassedOver())
    name, colon, root = source.partition(":")
    if name in NAMES and (colon or not Path(source).exists()):
        parts = open_named(name, Path(root).expanduser() if root else None, download=download)
        return _Found(name, parts, PassedOver())
    if (name == "pipe" and colon) or "://" in source:
        raise ValueError(
            f"{printable(source)}: commands and addresses are refused as data; fetch it first, then give a path"
        )
    if "{" in source and not Path(source).exists():
        shards = [Path(name).expanduser() for name in expand_braces(source)]
        return _open_tars(source, shards, shards[0].parent)
    path = Path(source).expanduser()
    if not path.exists():
        here = "" if Path(source).is_absolute() else f" in {Path.cwd()}"
        raise UnknownData(f"{printable(source)}: no such file or folder{here}; data is {_ACCEPTED}")
    return _open_folder(path, label_column) if path.is_dir() else _open_file(path, label_column)


def _open_folder(path: Path, label_column: str) -> _Found:
    for suffix in (".parquet", ".tar"):
        # Two levels are enough for shards, and keep the search out of a million class files.
        found = sorted([*path.glob(f"*{suffix}"), *path.glob(f"*/*{suffix}")])
        if found and not _holds_images(path):
            if suffix == ".parquet":
                kind = f"{len(found)} parquet files in {printable(str(path))}"
                return _Found(kind, open_parquet(found, path), PassedOver())
            return _open_tars(str(path), found, path)
    return _pictures_in(f"image folder {printable(str(path))}", path, label_column)


def _pictures_in(kind: str, path: Path, label_column: str) -> _Found:
    """By a table of their labels, if there is one, or else in class folders."""
    passed = PassedOver()
    if listings := listings_of(path, label_column, passed):
        tables = ", ".join(printable(listing.path.name) for listing in listings.values())
        return _Found(f"{kind}, labels of {tables}", open_listed(path, listings, passed, label_column), passed, True)
    return _Found(kind, open_folder(path, passed), passed)


def _holds_images(path: Path) -> bool:
    return any(file.suffix.lower() in IMAGE_SUFFIXES for depth in ("*", "*/*") for file in path.glob(depth))


def _open_file(path: Path, label_column: str) -> _Found:
    lower, shown = path.name.lower(), printable(str(path))
    if lower.endswith(".npz"):
        return _Found(f"arrays of {shown}", open_npz(path), PassedOver())
    if lower.endswith(TABLE_SUFFIXES) or (lower.endswith(".parquet") and names_pictures(path)):
        passed = PassedOver()
        parts = open_listed(path.parent, {"train": read_listing(path)}, passed, label_column)
        return _Found(f"pictures listed in {shown}", parts, passed, True)
    if lower.endswith(".parquet"):
        return _Found(f"parquet file {shown}", open_parquet([path], path.parent), PassedOver())
    if lower.endswith(ARCHIVE_SUFFIXES):
        if lower.endswith(".tar") and _is_shard(path):
            return _open_tars(str(path), [path], path.parent)
        inside = unpacked(path, (*IMAGE_SUFFIXES, *TABLE_SUFFIXES), "pictures and tables")
        return _pictures_in(f"archive {shown}", inside, label_column)
    raise UnknownData(f"{shown}: not a kind of data that is known; data is {_ACCEPTED}")


def _is_shard(path: Path) -> bool:
    try:
        return looks_like_shard(path)
    except (*UNREADABLE, ValueError) as error:
        raise ValueError(f"{printable(str(path))}: not a readable tar file: {printable(str(error))}") from None


def _open_tars(source: str, paths: Sequence[Path], root: Path) -> _Found:
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{printable(source)}: {printable(str(path))} does not exist")
    passed = PassedOver()
    parts = open_shards(paths, root, passed)
    return _Found(f"{len(paths)} WebDataset shards of {printable(source)}", parts, passed)
