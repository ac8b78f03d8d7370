"""Image folders: one folder per class, with or without train and val above them."""

from __future__ import annotations

import os
from pathlib import Path

from nearsight.datasets.labelled import FileImages, LabelledImages
from nearsight.datasets.splitting import SPLIT_WORDS, encode_labels
from nearsight.images.decode import IMAGE_SUFFIXES
from nearsight.runs.layout import is_run_folder
from nearsight.text import printable


class UnknownData(ValueError):
    """What was given as data is not there, or no kind of labelled images."""


def _subfolders(folder: Path) -> dict[str, Path]:
    """The folders that may be classes or splits, in order: not those of runs, which may have been put beside them."""
    try:
        entries = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
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
        if entry.is_dir() and not entry.name.startswith("."):
            found = _holds_runs(entry, depth - 1)
            if not found:
                return False
    return found


def _files_below(folder: Path) -> list[str]:
    """Image files at any depth, as sorted paths relative to `folder`. Links are followed, circles are not."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen or is_run_folder(Path(here)):
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        prefix = Path(here).relative_to(folder)
        found += [
            (prefix / name).as_posix()
            for name in files
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
        ]
    return sorted(found)


def read_class_folders(root: Path, classes: tuple[str, ...] | None = None) -> FileImages:
    """A folder of class folders. `classes` are those of the training split, where this is another one."""
    folders = _subfolders(root)
    if not folders:
        hint = "it holds images but no class folders" if _files_below(root) else "it is empty"
        raise UnknownData(f"{printable(str(root))}: {hint}; expected one folder per class, such as cats/ and dogs/")
    names: list[str] = []
    owners: list[str] = []
    for class_name, folder in folders.items():
        files = _files_below(folder)
        if not files:
            if {"images", "labels"} <= set(folders):
                raise ValueError(f"{printable(str(folder.parent))} holds images with boxes, not classes")
            raise ValueError(
                f"class folder {printable(str(folder))} has no images ({', '.join(IMAGE_SUFFIXES)}); fill or remove it"
            )
        names += [f"{class_name}/{file}" for file in files]
        owners += [class_name] * len(files)
    labels, known = encode_labels(owners, classes)
    return FileImages(root, names, labels, known)


def open_folder(root: Path) -> dict[str, LabelledImages]:
    """The splits found in an image folder; just 'train' when it is one folder of classes."""
    folders = _subfolders(root)
    while len(folders) == 1 and not _files_directly_in(root):  # a wrapper folder, as archives have
        (only,) = folders.values()
        if not _subfolders(only):
            break
        root, folders = only, _subfolders(only)
    named = {name: path for name, path in folders.items() if name.lower() in SPLIT_WORDS}
    splits = {SPLIT_WORDS[name.lower()]: path for name, path in named.items()}
    # Beside other classes, and without folders of its own, `train` is a class: pictures of trains.
    if "train" not in splits or (len(named) < len(folders) and not _subfolders(splits["train"])):
        return {"train": read_class_folders(root)}
    train = read_class_folders(splits["train"])
    parts: dict[str, LabelledImages] = {"train": train}
    for split in ("val", "test"):
        unlabelled_test = split == "test" and split in splits and not _subfolders(splits[split])
        if split in splits and not unlabelled_test:
            parts[split] = read_class_folders(splits[split], train.classes)
    return parts


def _files_directly_in(folder: Path) -> bool:
    return any(entry.is_file() and entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in folder.iterdir())
