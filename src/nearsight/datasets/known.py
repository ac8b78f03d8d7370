"""Datasets known by name, read through torchvision. Nothing is fetched unless asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nearsight.datasets.archive import default_root
from nearsight.datasets.folder import open_folder
from nearsight.datasets.labelled import LabelledImages
from nearsight.datasets.stored import ArrayImages, FileImages
from nearsight.text import printable


def _cifar(name: str) -> Callable[[Path, bool], dict[str, LabelledImages]]:
    def read(root: Path, download: bool) -> dict[str, LabelledImages]:
        from torchvision import datasets

        kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
        parts: dict[str, LabelledImages] = {}
        for split in ("train", "test"):
            stored = kind(str(root), train=split == "train", download=download)
            parts[split] = ArrayImages(stored.data, stored.targets, stored.classes, f"{split} row")
        return parts

    return read


def _files(root: Path, stored: Any, paths: list, labels: list, classes: list[str] | None = None) -> FileImages:
    names = [Path(path).relative_to(root).as_posix() for path in paths]
    return FileImages(root, names, np.asarray(labels), stored.classes if classes is None else classes)


def _pets(root: Path, download: bool) -> dict[str, LabelledImages]:
    from torchvision import datasets

    parts: dict[str, LabelledImages] = {}
    for split, official in (("train", "trainval"), ("test", "test")):
        stored = datasets.OxfordIIITPet(str(root), split=official, download=download)
        parts[split] = _files(root, stored, stored._images, stored._labels)
    return parts


def _food101(root: Path, download: bool) -> dict[str, LabelledImages]:
    from torchvision import datasets

    parts: dict[str, LabelledImages] = {}
    for split in ("train", "test"):
        stored = datasets.Food101(str(root), split=split, download=download)
        parts[split] = _files(root, stored, stored._image_files, stored._labels)
    return parts


def _flowers(root: Path, download: bool) -> dict[str, LabelledImages]:
    from torchvision import datasets

    parts: dict[str, LabelledImages] = {}
    for split in ("train", "val", "test"):
        try:
            stored = datasets.Flowers102(str(root), split=split, download=download)
        except ModuleNotFoundError:
            raise ValueError(
                "flowers keeps its labels in a MATLAB file, which needs SciPy: pip install scipy"
            ) from None
        classes = [f"{label + 1:03d}" for label in range(102)]
        parts[split] = _files(root, stored, stored._image_files, stored._labels, classes)
    return parts


def _imagenet(root: Path, download: bool) -> dict[str, LabelledImages]:
    if download:
        raise ValueError(
            "imagenet cannot be downloaded: its terms need an account; unpack it to train/ and val/ folders"
        )
    if not (root / "train").is_dir():
        raise RuntimeError("Dataset not found")
    return open_folder(root)


_READERS: dict[str, Callable[[Path, bool], dict[str, LabelledImages]]] = {
    "cifar10": _cifar("cifar10"),
    "cifar100": _cifar("cifar100"),
    "pets": _pets,
    "flowers": _flowers,
    "food101": _food101,
    "imagenet": _imagenet,
}
KNOWN_NAMES = tuple(_READERS)


def open_known(name: str, root: Path | None, *, download: bool) -> dict[str, LabelledImages]:
    folder = default_root() / ("imagenet" if name == "imagenet" else "") if root is None else root
    if download:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        return _READERS[name](folder, download)
    except (RuntimeError, OSError) as error:
        if download:
            raise ValueError(f"{name}: download to {printable(str(folder))} failed: {printable(str(error))}") from None
        fetch = "" if name == "imagenet" else ", or allow the download (--download)"
        raise ValueError(
            f"{name} is not in {printable(str(folder))}; say where it is with {name}:FOLDER{fetch}"
        ) from None
