"""From what the user wrote as DATA to images with boxes: COCO's json, Pascal VOC's xml or YOLO's text files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from nearsight.datasets.archive import ARCHIVE_SUFFIXES, first_names, unpacked
from nearsight.datasets.splitting import SPLIT_WORDS, check_parts, group_by_split, without_own_val
from nearsight.detection.coco_files import looks_like_coco, read_coco
from nearsight.detection.dataset import BoxCollector, DetectionSet, DetectionSplits, hold_out
from nearsight.detection.voc_files import read_voc
from nearsight.detection.yolo_files import find_yolo, read_yolo
from nearsight.images.files import PassedOver
from nearsight.images.formats import IMAGE_SUFFIXES
from nearsight.images.imageset import Splits
from nearsight.text import printable
from nearsight.untrusted.files import read_text
from nearsight.untrusted.limits import LIST_BYTES

BUNDLED = "bccd"
_LAYOUTS = (
    "COCO (train.json … with images/, or annotations/instances_*.json), Pascal VOC (Annotations/*.xml with "
    "JPEGImages/), YOLO (images/ and labels/ with data.yaml or classes.txt)"
)
_ANNOTATION_SUFFIXES = (".json", ".xml", ".txt", ".yaml", ".yml", ".names")


@dataclass(frozen=True)
class DetectionParts:
    """The splits of a source as it has them; none is required, none is made."""

    kind: str
    sets: dict[str, DetectionSet]
    """By 'train', 'val' and 'test'; all of a source that names no parts is 'train'."""
    notes: tuple[str, ...]
    not_read: Mapping[str, int]
    """Files that are not read: how many for each reason."""


def has_boxes(source: str | Path) -> bool:
    """Whether a data source has boxes: a cheap look at a few names, before anything is read."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder_has_boxes(path)
    if path.is_file():
        name = path.name.lower()
        return (name.endswith(".json") and looks_like_coco(path)) or (
            name.endswith(ARCHIVE_SUFFIXES) and any(_BOX_FILE.search(entry) for entry in first_names(path))
        )
    return str(source) == BUNDLED


_BOX_FILE = re.compile(
    r"(^|/)(annotations/[^/]+\.(xml|json)|(instances_|_annotations\.coco)[^/]*\.json|(train|val|test)\.json"
    r"|labels/.*\.txt|(data|dataset)\.ya?ml|obj\.names)$",
    re.IGNORECASE,
)
_BOX_PATTERNS = (
    "[aA]nnotations/*.xml", "labels/*.txt", "labels/*/*.txt", "*/labels/*.txt", "data.y*ml", "dataset.yaml"
)  # fmt: skip
_JSON_PATTERNS = ("*.json", "annotations/*.json", "*/_annotations.coco.json")


def _folder_has_boxes(folder: Path) -> bool:
    if any(looks_like_coco(path) for pattern in _JSON_PATTERNS for path in folder.glob(pattern)):
        return True
    parts = [part for part in folder.iterdir() if part.is_dir() and part.name.lower() in SPLIT_WORDS]
    beside = "*.txt" if (folder / "classes.txt").is_file() or (folder / "obj.names").is_file() else "*.xml"
    near = [part.glob(pattern) for part in parts for pattern in {"*.xml", beside}]
    return any(next(found, None) for found in (*(folder.glob(pattern) for pattern in _BOX_PATTERNS), *near))


def open_detection(
    source: str | Path, *, seed: int = 0, val_fraction: float = 0.1, val_from: str = "data"
) -> DetectionSplits:
    """Open a detection data source to train on.

    source: a folder, a COCO json, an archive of either, or 'bccd', blood cells that come with the package.
    seed, val_fraction: how val is taken from train where the source has none of its own, or val_from is "train".
    """
    parts = open_parts(source)
    if val_from == "train":
        parts = replace(parts, sets=without_own_val(parts.sets))
    return _finish(parts, seed, val_fraction)


def open_parts(source: str | Path) -> DetectionParts:
    """Recognise a detection data source and read what is there, to measure on."""
    path = Path(source).expanduser()
    if str(source) == BUNDLED and not path.exists():
        path = Path(str(files(__package__) / "bccd"))
    if not path.exists():
        raise ValueError(
            f"{printable(str(source))}: no such file or folder; detection data is {_LAYOUTS}, or '{BUNDLED}'"
        )
    if path.is_file() and path.name.lower().endswith(ARCHIVE_SUFFIXES):
        path = unpacked(path, (*IMAGE_SUFFIXES, *_ANNOTATION_SUFFIXES), "boxes")
        inner = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        path = inner[0] if len(inner) == 1 and inner[0].is_dir() else path
    passed = PassedOver()
    kind, read = _read(path, passed)
    sets: dict[str, DetectionSet] = {split: read[split].build() for split in ("train", "val", "test") if split in read}
    notes = tuple(f"{split}: {note}" for split in sets for note in read[split].summary())
    notes += passed.notes(sum(map(len, sets.values())))
    return DetectionParts(f"{kind} {printable(str(source))}", sets, notes, passed.counts)


def _read(path: Path, passed: PassedOver) -> tuple[str, dict[str, BoxCollector]]:
    if path.is_file():
        if path.suffix.lower() != ".json":
            raise ValueError(f"{printable(str(path))}: not detection data; it is {_LAYOUTS}")
        return "COCO json", {"train": read_coco(path, "train")}
    if jsons := _coco_files(path):
        return "COCO folder", {split: read_coco(file, split) for split, file in jsons.items()}
    if xmls := _voc_files(path):
        train = {"train": read_voc(path, xmls.pop("train"))} if "train" in xmls else {}
        classes = train["train"].classes if train else None
        return "Pascal VOC folder", {**train, **{split: read_voc(path, own, classes) for split, own in xmls.items()}}
    if (yolo := find_yolo(path, passed)) is not None:
        names, images = yolo
        return "YOLO folder", {split: read_yolo(path, own, names) for split, own in images.items()}
    raise ValueError(f"{printable(str(path))}: no boxes found; detection data is {_LAYOUTS}")


def _finish(parts: DetectionParts, seed: int, val_fraction: float) -> DetectionSplits:
    kind, sets = parts.kind, dict(parts.sets)
    check_parts(kind, sets, lambda images: (images.classes, images.category_ids))
    if not sets["train"].num_learnable:
        raise ValueError(f"{kind}: the training images have no boxes at all")
    how = "val as given"
    if "val" not in sets:
        if not 0 < val_fraction < 1:
            raise ValueError(
                f"{kind}: there is no val split, so val_fraction must be between 0 and 1, not {val_fraction}"
            )
        sets["train"], sets["val"] = hold_out(sets["train"], val_fraction, seed)
        how = f"val is {val_fraction:.0%} of train, by hash of seed {seed} and name"
    for split in ("train", "val"):
        if not sets[split].num_learnable:
            remedy = "add some" if "val" in parts.sets else "add a val split, or set another data_seed or val_fraction"
            raise ValueError(f"{kind}: {split} has {len(sets[split])} images without a single box; {remedy}")
    notes = parts.notes + tuple(note for split in ("val", "test") for note in _shared(sets, split))
    counts = ", ".join(
        f"{split} {len(sets[split])} images with {len(sets[split].labels)} boxes"
        for split in ("train", "val", "test")
        if split in sets
    )
    origin = f"{kind}: {len(sets['train'].classes)} classes; {counts}; {how}"
    return Splits(sets["train"], sets["val"], sets.get("test"), origin, notes, not_read=parts.not_read)


def _shared(sets: dict[str, DetectionSet], split: str) -> list[str]:
    """A warning where images of a split are training images as well."""
    if split not in sets:
        return []
    train, other = ({f"{images.root}/{name}" for name in images.names} for images in (sets["train"], sets[split]))
    if not (both := train & other):
        return []
    first = printable(min(both))
    return [f"warning: {len(both)} images of {split} are in train too (first: {first}): its mAP will be too good"]


def _coco_files(folder: Path) -> dict[str, Path]:
    """COCO's annotation files by split: `instances_…` where there are any, else every json that looks like one."""
    found = sorted({path for pattern in _JSON_PATTERNS for path in folder.glob(pattern)})
    instances = [path for path in found if path.name.startswith("instances_")]
    by_split = group_by_split(instances or filter(looks_like_coco, found), folder)
    for split, (first, *others) in by_split.items():
        if others:
            raise ValueError(
                f"{printable(str(folder))}: {first.name} and {others[0].name} are both {split}; "
                "name them train.json, val.json and test.json, or give one file"
            )
    return {split: path for split, (path,) in by_split.items()}


def _voc_files(folder: Path) -> dict[str, list[Path]]:
    """VOC's annotation files by split: by ImageSets/Main/*.txt, by folders named as splits, or all as train."""
    everything = sorted(folder.glob("Annotations/*.xml")) or sorted(folder.glob("annotations/*.xml"))
    by_stem = {path.stem: path for path in everything}
    by_split: dict[str, list[Path]] = {}
    for split in ("train", "val", "test"):
        listed = folder / "ImageSets" / "Main" / f"{split}.txt"
        if everything and listed.is_file():
            stems = [line.split()[0] for line in read_text(listed, LIST_BYTES).splitlines() if line.strip()]
            if missing := [stem for stem in stems if stem not in by_stem]:
                raise ValueError(f"{printable(str(listed))}: {printable(missing[0])} has no annotation file")
            by_split[split] = [by_stem[stem] for stem in stems]
    if by_split:
        return by_split
    if everything:
        return {"train": everything}
    for sub in sorted(folder.iterdir()):
        split_name = SPLIT_WORDS.get(sub.name.lower())
        if split_name and sub.is_dir() and (xmls := sorted(sub.rglob("*.xml"))):
            by_split[split_name] = xmls
    return by_split
