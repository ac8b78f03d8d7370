"""The set that comes with the package: 3 781 photographs of clothing in ten classes (CC0; see clothing64.txt)."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from nearsight.datasets.labelled import LabelledImages
from nearsight.datasets.stored import EncodedImages


def open_clothing() -> dict[str, LabelledImages]:
    """Its official splits. Images are encoded, side 64."""
    with (files(__package__) / "clothing64.npz").open("rb") as stored, np.load(stored, allow_pickle=False) as pack:
        classes = tuple(str(name) for name in pack["classes"])
        parts: dict[str, LabelledImages] = {}
        for split in ("train", "val", "test"):
            names = bytes(pack[f"{split}_names"]).decode().split("\n")
            parts[split] = EncodedImages(
                pack[f"{split}_images"], pack[f"{split}_ends"], names, pack[f"{split}_labels"], classes
            )
        return parts
