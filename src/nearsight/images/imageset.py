"""What a set of labelled images is, and how to take parts of one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, overload, runtime_checkable

import numpy as np

from nearsight.text import printable


class BadImage(Exception):
    """An image that cannot be read: its name and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both in args, so that it survives pickling between processes
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.name)}: {printable(self.reason)}"


@runtime_checkable
class ImageSet(Protocol):
    """Labelled images with random access. Pickles cheaply enough to be sent to loading workers."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is a position here."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """One stable name per image (relative path, or 'row 17'), for reports and the record of a run."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB, fully decoded and upright. Raises BadImage."""
        ...

    def fingerprint(self) -> str:
        """sha256 over names, labels, classes and sizes of the stored images: cheap, changes when the data changes."""
        ...


@dataclass(frozen=True)
class Splits:
    """A data source, ready to train on."""

    train: ImageSet
    val: ImageSet
    test: ImageSet | None
    origin: str
    """One line for the user: what was detected, how many images, how val was made."""


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


def digest(names: Sequence[str], labels: np.ndarray, classes: Sequence[str], sizes: Iterable[int]) -> str:
    """The fingerprint that every kind of set gives."""
    state = hashlib.sha256()
    for text in (*classes, "\0", *names):
        state.update(text.encode("utf-8", "surrogateescape") + b"\0")
    state.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    state.update(np.fromiter(sizes, dtype="<i8").tobytes())
    return state.hexdigest()


class _Part:
    """Chosen images of another set, in the given order."""

    def __init__(self, base: ImageSet, indices: np.ndarray, classes: tuple[str, ...]) -> None:
        self._base = base
        self._indices = indices
        self.classes = classes
        self.labels = np.asarray(base.labels)[indices]
        self.names = PackedNames(base.names[int(i)] for i in indices)

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> np.ndarray:
        return self._base.read(int(self._indices[index]))

    def fingerprint(self) -> str:
        return digest([self._base.fingerprint()], self._indices, self.classes, ())


def _part(images: ImageSet, indices: np.ndarray, classes: tuple[str, ...]) -> ImageSet:
    if isinstance(images, _Part):  # one hop at most, however often parts are taken of parts
        return _Part(images._base, images._indices[indices], classes)
    return _Part(images, indices, classes)


def subset(images: ImageSet, indices: Iterable[int] | np.ndarray) -> ImageSet:
    """The images at `indices`, in that order; class names and labels stay."""
    chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
    if chosen.size and (chosen.min() < 0 or chosen.max() >= len(images)):
        raise ValueError(f"indices must lie in 0..{len(images) - 1}, got {chosen.min()}..{chosen.max()}")
    return _part(images, chosen, images.classes)


class _Renamed:
    """The images of another set under a longer list of classes."""

    def __init__(self, base: ImageSet, labels: np.ndarray, classes: tuple[str, ...]) -> None:
        self._base = base
        self.classes, self.labels, self.names = classes, labels, base.names

    def __len__(self) -> int:
        return len(self._base)

    def read(self, index: int) -> np.ndarray:
        return self._base.read(index)

    def fingerprint(self) -> str:
        return digest([self._base.fingerprint()], self.labels, self.classes, ())


def with_classes(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The same images with labels among `classes`, which may be more than theirs, never fewer."""
    present = {images.classes[label] for label in np.unique(images.labels)}
    unknown = sorted(present - set(classes))
    if unknown:
        shown = printable(", ".join(unknown[:5]))
        raise ValueError(f"there are images of other classes than {printable(', '.join(classes))}: {shown}")
    position = {name: label for label, name in enumerate(classes)}
    labels = np.array([position.get(name, -1) for name in images.classes], dtype=np.int64)[np.asarray(images.labels)]
    return _Renamed(images, labels, tuple(classes))


def name_ranks(names: Iterable[str], seed: int) -> np.ndarray:
    """A number in [0, 1) per name, from seed and name alone: adding files never moves the others."""
    prefix = f"{seed}/".encode()
    hashes = (hashlib.sha256(prefix + name.encode("utf-8", "surrogateescape")).digest()[:7] for name in names)
    return np.fromiter((int.from_bytes(value, "big") / 2**56 for value in hashes), dtype=np.float64)


def per_class_fraction(images: ImageSet, f: float, seed: int = 0) -> ImageSet:
    """A fraction f of every class (rounded, at least one image), chosen by a hash of seed and name.

    The chosen sets are nested: with the same seed, a smaller fraction is contained in a larger one.
    """
    if not 0 < f <= 1:
        raise ValueError(f"the fraction of each class must be in (0, 1], got {f}")
    ranks = name_ranks(images.names, seed)
    chosen = []
    for label in range(len(images.classes)):
        members = np.flatnonzero(np.asarray(images.labels) == label)
        keep = min(len(members), max(1, round(f * len(members))))
        chosen.append(members[np.argsort(ranks[members], kind="stable")[:keep]])
    return subset(images, np.sort(np.concatenate(chosen)))


def first_classes(images: ImageSet, n: int) -> ImageSet:
    """Only the first n classes."""
    if not 1 <= n <= len(images.classes):
        raise ValueError(f"the number of classes must be in 1..{len(images.classes)}, got {n}")
    kept = np.flatnonzero(np.asarray(images.labels) < n)
    if not len(kept):
        raise ValueError(
            f"a split of {len(images)} images has none of the first {n} classes "
            f"({printable(', '.join(images.classes[:n]))}); keep more classes, or add images of these"
        )
    return _part(images, kept, images.classes[:n])
