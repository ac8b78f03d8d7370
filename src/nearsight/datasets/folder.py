"""Image folders: one folder per class, with or without train and val above them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nearsight.datasets.labelled import FileImages, LabelledImages
from nearsight.datasets.splitting import SPLIT_WORDS, encode_labels
from nearsight.images.files import HIDDEN, PassedOver, is_hidden, pictures_below, refusal
from nearsight.images.formats import IMAGE_SUFFIXES, readable_suffixes
from nearsight.runs.layout import is_run_folder
from nearsight.text import printable


class UnknownData(ValueError):
    """What was given as data is not there, or no kind of labelled images."""


def _subfolders(folder: Path) -> dict[str, Path]:
    """The folders that may be classes or splits, in order: not those of runs, which may have been put beside them."""
    try:
        entries = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not is_hidden(entry.name)]
        return {entry.name: entry for entry in entries if not _holds_runs(entry)}
    except OSError as error:
        raise ValueError(f"{printable(str(error.filename or folder))}: {error.strerror}") from None


def _holds_runs(folder: Path, depth: int = 2) -> bool:
    """A run's folder, or one such as runs/ with folders of runs and no images of its own."""
    if is_run_folder(folder):
        return True
    found = False
    for entry in folder.iterdir() if depth else ():
        if entry.name.lower().endswith(IMAGE_SUFFIXES):
            return False
        if entry.is_dir() and not is_hidden(entry.name):
            found = _holds_runs(entry, depth - 1)
            if not found:
                return False
    return found


def read_class_folders(root: Path, passed: PassedOver, classes: tuple[str, ...] | None = None) -> FileImages:
    """A folder of class folders. `classes` are those of the training split, where this is another one."""
    folders = _subfolders(root)
    if not folders:
        below = PassedOver()
        hint = "it holds images but no class folders" if pictures_below(root, below, is_run_folder) else "it is empty"
        hint = " and ".join([hint, *below.notes(0)]) if below else hint
        raise UnknownData(f"{printable(str(root))}: {hint}; expected one folder per class, such as cats/ and dogs/")
    _count_beside(root, (), passed)
    names: list[str] = []
    owners: list[str] = []
    for class_name, folder in folders.items():
        own = PassedOver()
        files = pictures_below(folder, own, is_run_folder)
        if not files:
            if {"images", "labels"} <= set(folders):
                raise ValueError(f"{printable(str(folder.parent))} holds images with boxes, not classes")
            why = "".join(f"; {note}" for note in own.notes(0)) or f" ({', '.join(readable_suffixes())})"
            raise ValueError(f"class folder {printable(str(folder))} has no images{why}; fill or remove it")
        passed.merge(own, f"{class_name}/")
        names += [f"{class_name}/{file}" for file in files]
        owners += [class_name] * len(files)
    labels, known = encode_labels(owners, classes)
    return FileImages(root, names, labels, known)


def open_folder(root: Path, passed: PassedOver) -> dict[str, LabelledImages]:
    """The splits found in an image folder; just 'train' when it is one folder of classes.

    Files that are not read are counted in `passed`.
    """
    folders = _subfolders(root)
    while len(folders) == 1 and not _files_directly_in(root):  # a wrapper folder, as archives have
        (only,) = folders.values()
        if not _subfolders(only):
            break
        _count_beside(root, (), passed)
        root, folders = only, _subfolders(only)
    named = {name: path for name, path in folders.items() if name.lower() in SPLIT_WORDS}
    splits: dict[str, Path] = {}
    for name, path in named.items():
        other = splits.setdefault(SPLIT_WORDS[name.lower()], path)
        if other is not path and "train" in map(str.lower, named):
            raise ValueError(
                f"{printable(str(root))}: {printable(other.name)} and {printable(name)} are both "
                f"{SPLIT_WORDS[name.lower()]}; join them or rename one"
            )
    # Beside other classes, and without folders of its own, `train` is a class: pictures of trains.
    if "train" not in splits or (len(named) < len(folders) and not _subfolders(splits["train"])):
        return {"train": read_class_folders(root, passed)}
    _count_beside(root, (path for name, path in folders.items() if name not in named), passed)
    train = read_class_folders(splits["train"], passed)
    parts: dict[str, LabelledImages] = {"train": train}
    for split in ("val", "test"):
        if split not in splits:
            continue
        if split == "test" and not _subfolders(splits[split]):
            _count_pictures(splits[split], f"in {printable(splits[split].name)}, which has no class folders", passed)
        else:
            parts[split] = read_class_folders(splits[split], passed, train.classes)
    return parts


def _count_beside(root: Path, folders: Iterable[Path], passed: PassedOver) -> None:
    """What lies directly in a folder that has classes or splits, and in folders that are neither."""
    readable = readable_suffixes()
    for entry in sorted(root.iterdir()):
        if entry.is_file():
            passed.add(entry.name, refusal(entry.name, readable) or "beside the class folders, not in one")
        elif is_hidden(entry.name):
            passed.add(f"{entry.name}/", HIDDEN)
    for folder in folders:
        _count_pictures(folder, "in folders beside those of the splits", passed)


def _count_pictures(folder: Path, reason: str, passed: PassedOver) -> None:
    own = PassedOver()
    for name in pictures_below(folder, own, is_run_folder):
        own.add(name, reason)
    passed.merge(own, f"{folder.name}/")


def _files_directly_in(folder: Path) -> bool:
    return any(entry.is_file() and entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in folder.iterdir())
