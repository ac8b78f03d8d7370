"""What both tasks need of a set of images: random access, stable names, and splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, overload

import numpy as np


class ImageSet(Protocol):
    """Images with random access. Pickles cheaply enough to be sent to dataloader workers."""

    @property
    def names(self) -> Sequence[str]:
        """One stable name per image (relative path, or 'row 17'), for reports and the record of a run."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB, fully decoded and upright. Raises BadImage."""
        ...

    def fingerprint(self) -> str:
        """sha256 that changes when the data changes, cheap to compute."""
        ...


Images = TypeVar("Images", bound=ImageSet)


@dataclass(frozen=True)
class Splits(Generic[Images]):
    """A data source, ready to train on."""

    train: Images
    val: Images
    test: Images | None
    origin: str
    """One line for the user: what was recognised, how many images, how val was made."""
    notes: tuple[str, ...] = ()
    """What was corrected or left out, with counts and an example each."""

    @property
    def named(self) -> dict[str, Images]:
        """The splits that are there."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {name: images for name, images in found.items() if images is not None}

    def split(self, name: str) -> Images:
        if name not in self.named:
            raise ValueError(f"the data has no {name} split")
        return self.named[name]


class PackedNames(Sequence[str]):
    """A list of strings in one buffer: a million names cost no Python objects, so forked workers share their memory."""

    def __init__(self, names: Iterable[str]) -> None:
        # surrogateescape: file names that are not UTF-8 exist and must still open.
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._buffer = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start = self._ends[index - 1] if index else 0
        return self._buffer[start : self._ends[index]].decode("utf-8", "surrogateescape")


def name_ranks(names: Iterable[str], seed: int) -> np.ndarray:
    """A number in [0, 1) per name, from seed and name alone: adding files never moves the others."""
    prefix = f"{seed}/".encode()
    hashes = (hashlib.sha256(prefix + name.encode("utf-8", "surrogateescape")).digest()[:7] for name in names)
    return np.fromiter((int.from_bytes(value, "big") / 2**56 for value in hashes), dtype=np.float64)
