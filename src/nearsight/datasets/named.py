"""Datasets known by name: one comes with the package, the others are read through torchvision.

Nothing is fetched unless asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from nearsight.datasets.archive import default_root
from nearsight.datasets.folder import open_folder
from nearsight.datasets.labelled import ArrayImages, EncodedImages, FileImages, LabelledImages
from nearsight.images.files import PassedOver
from nearsight.text import printable

Reader = Callable[[Path, bool], dict[str, LabelledImages]]
"""(folder, whether a download is allowed) → the official splits."""


def open_clothing() -> dict[str, LabelledImages]:
    """The set in the package: 3 781 photographs in ten classes, side 64, encoded (CC0; see clothing64.txt)."""
    with (files(__package__) / "clothing64.npz").open("rb") as stored, np.load(stored, allow_pickle=False) as pack:
        classes = tuple(str(name) for name in pack["classes"])
        parts: dict[str, LabelledImages] = {}
        for split in ("train", "val", "test"):
            names = bytes(pack[f"{split}_names"]).decode().split("\n")
            parts[split] = EncodedImages(
                pack[f"{split}_images"], pack[f"{split}_ends"], names, pack[f"{split}_labels"], classes
            )
        return parts


def _cifar(kind: str) -> Reader:
    def read(root: Path, download: bool) -> dict[str, LabelledImages]:
        from torchvision import datasets

        parts: dict[str, LabelledImages] = {}
        for split in ("train", "test"):
            stored = getattr(datasets, kind)(str(root), train=split == "train", download=download)
            parts[split] = ArrayImages(stored.data, stored.targets, stored.classes, f"{split} row")
        return parts

    return read


def _image_files(kind: str, official: Mapping[str, str], paths: str, classes: Sequence[str] = ()) -> Reader:
    """A dataset of torchvision that lists its files in the attribute `paths`; `official` names its splits."""

    def read(root: Path, download: bool) -> dict[str, LabelledImages]:
        from torchvision import datasets

        parts: dict[str, LabelledImages] = {}
        for split, name in official.items():
            stored = getattr(datasets, kind)(str(root), split=name, download=download)
            names = [Path(path).relative_to(root).as_posix() for path in getattr(stored, paths)]
            parts[split] = FileImages(root, names, np.asarray(stored._labels), classes or stored.classes)
        return parts

    return read


def _imagenet(root: Path, download: bool) -> dict[str, LabelledImages]:
    if download:
        raise ValueError(
            "imagenet cannot be downloaded: its terms need an account; unpack it to train/ and val/ folders"
        )
    if not (root / "train").is_dir():
        raise RuntimeError("Dataset not found")
    return open_folder(root, PassedOver())


_READERS: dict[str, Reader] = {
    "cifar10": _cifar("CIFAR10"),
    "cifar100": _cifar("CIFAR100"),
    "pets": _image_files("OxfordIIITPet", {"train": "trainval", "test": "test"}, "_images"),
    "flowers": _image_files(
        "Flowers102",
        {"train": "train", "val": "val", "test": "test"},
        "_image_files",
        [f"{number:03d}" for number in range(1, 103)],
    ),
    "food101": _image_files("Food101", {"train": "train", "test": "test"}, "_image_files"),
    "imagenet": _imagenet,
}
NAMES = tuple(_READERS)


def open_named(name: str, root: Path | None, *, download: bool) -> dict[str, LabelledImages]:
    folder = default_root() / ("imagenet" if name == "imagenet" else "") if root is None else root
    if download:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        return _READERS[name](folder, download)
    except ModuleNotFoundError:  # of SciPy
        raise ValueError(f"{name} keeps its labels in a MATLAB file, which needs SciPy: pip install scipy") from None
    except (RuntimeError, OSError) as error:
        if download:
            raise ValueError(f"{name}: download to {printable(str(folder))} failed: {printable(str(error))}") from None
        fetch = "" if name == "imagenet" else ", or allow the download (--download)"
        raise ValueError(
            f"{name} is not in {printable(str(folder))}; say where it is with {name}:FOLDER{fetch}"
        ) from None
