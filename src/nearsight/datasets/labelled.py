"""Sets of labelled images: stored as files, encoded in one buffer or as plain pixel arrays, and parts of others."""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from nearsight.datasets.content import file_checksums, row_checksums
from nearsight.images.decode import decode_image, read_image_file
from nearsight.images.fingerprints import join_fingerprint
from nearsight.images.imageset import ImageSet, PackedNames, Splits, name_ranks
from nearsight.text import printable


@runtime_checkable
class LabelledImages(ImageSet, Protocol):
    """Images with one label each."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is a position here."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]."""
        ...

    def outline(self) -> str:
        """sha256 of names, labels, classes and sizes: the first half of the fingerprint."""
        ...

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [n, CHECKSUM] of the images at these places, as they are stored."""
        ...


LabelledSplits = Splits[LabelledImages]


def digest(names: Sequence[str], labels: np.ndarray, classes: Sequence[str], sizes: Iterable[int]) -> str:
    """The outline that every kind of set gives."""
    state = hashlib.sha256()
    for text in (*classes, "\0", *names):
        state.update(text.encode("utf-8", "surrogateescape") + b"\0")
    state.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    state.update(np.fromiter(sizes, dtype="<i8").tobytes())
    return state.hexdigest()


class LabelledSet(ABC):
    """Names, labels and classes: what a set has beside its pixels."""

    def __init__(self, names: Iterable[str], labels: Sequence[int] | np.ndarray, classes: Sequence[str]) -> None:
        self.names, self.classes = PackedNames(names), tuple(classes)
        self.labels = np.asarray(labels, dtype=np.int64).reshape(-1)
        count, num_classes = len(self.names), len(self.classes)
        if len(self.labels) != count:
            raise ValueError(f"{count} images but {len(self.labels)} labels")
        if count and (self.labels.min() < 0 or self.labels.max() >= num_classes):
            raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {self.labels.min()}..{self.labels.max()}")

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def outline(self) -> str: ...

    @abstractmethod
    def checksums(self, indices: np.ndarray) -> np.ndarray: ...

    def fingerprint(self) -> str:
        return join_fingerprint(self.outline(), self.checksums(np.arange(len(self))))


class FileImages(LabelledSet):
    """One file per image; names are paths relative to `root`."""

    def __init__(
        self, root: Path, names: Iterable[str], labels: Sequence[int] | np.ndarray, classes: Sequence[str]
    ) -> None:
        super().__init__(names, labels, classes)
        self.root = Path(root)

    def read(self, index: int) -> np.ndarray:
        name = self.names[index]
        return read_image_file(self.root / name, name)

    def outline(self) -> str:
        return digest(self.names, self.labels, self.classes, (self._size(name) for name in self.names))

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        return file_checksums(self.root, [self.names[int(index)] for index in indices])

    def _size(self, name: str) -> int:
        try:
            return (self.root / name).stat().st_size
        except OSError:
            return -1


class EncodedImages(LabelledSet):
    """Encoded images back to back in one buffer: image i is buffer[ends[i-1] : ends[i]]."""

    def __init__(
        self,
        buffer: np.ndarray,
        ends: np.ndarray,
        names: Iterable[str],
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
    ) -> None:
        super().__init__(names, labels, classes)
        self._buffer, self._bounds = buffer, np.concatenate([[0], np.asarray(ends, dtype=np.int64)])
        if len(ends) != len(self) or np.any(np.diff(self._bounds) < 0) or self._bounds[-1] > len(buffer):
            raise ValueError("the offsets of the encoded images do not fit their buffer")

    def read(self, index: int) -> np.ndarray:
        data = self._buffer[self._bounds[index] : self._bounds[index + 1]].tobytes()
        return decode_image(data, self.names[index])

    def outline(self) -> str:
        return digest(self.names, self.labels, self.classes, np.diff(self._bounds))

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        return row_checksums(self._buffer[self._bounds[index] : self._bounds[index + 1]] for index in indices)


class ArrayImages(LabelledSet):
    """Pixels in one uint8 array [N, H, W, 3]."""

    def __init__(
        self, pixels: np.ndarray, labels: Sequence[int] | np.ndarray, classes: Sequence[str], label: str = "row"
    ) -> None:
        super().__init__((f"{label} {row}" for row in range(len(pixels))), labels, classes)
        self._pixels, self._label = pixels, label

    def read(self, index: int) -> np.ndarray:
        return self._pixels[index]

    def outline(self) -> str:
        stride = max(1, len(self) // 1000)  # a thousand rows, as in records that have nothing else of the pixels
        checksum = zlib.crc32(self._pixels[::stride].tobytes())
        return digest([self._label], self.labels, self.classes, (*self._pixels.shape, checksum))

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        return row_checksums(self._pixels[index] for index in indices)


class _Part(LabelledSet):
    """Chosen images of another set, in the given order, with labels among the given classes."""

    def __init__(
        self, images: LabelledImages, indices: np.ndarray, classes: tuple[str, ...], labels: np.ndarray | None = None
    ) -> None:
        own = images.labels[indices] if labels is None else labels
        super().__init__((images.names[int(i)] for i in indices), own, classes)
        # A part of a part refers to the original set directly.
        self._base: LabelledImages = images._base if isinstance(images, _Part) else images
        self._indices: np.ndarray = images._indices[indices] if isinstance(images, _Part) else indices

    def read(self, index: int) -> np.ndarray:
        return self._base.read(int(self._indices[index]))

    def outline(self) -> str:
        return digest([self._base.outline()], self._indices, self.classes, ())

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        return self._base.checksums(self._indices[indices])


def subset(images: LabelledImages, indices: Iterable[int] | np.ndarray) -> LabelledImages:
    """The images at `indices`, in that order; class names and labels stay."""
    chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
    if chosen.size and (chosen.min() < 0 or chosen.max() >= len(images)):
        raise ValueError(f"indices must lie in 0..{len(images) - 1}, got {chosen.min()}..{chosen.max()}")
    return _Part(images, chosen, images.classes)


def with_classes(images: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """The same images with labels among `classes`, which may be more than theirs, never fewer."""
    present = {images.classes[label] for label in np.unique(images.labels)}
    unknown = sorted(present - set(classes))
    if unknown:
        shown = printable(", ".join(unknown[:5]))
        raise ValueError(f"there are images of other classes than {printable(', '.join(classes))}: {shown}")
    position = {name: label for label, name in enumerate(classes)}
    labels = np.array([position.get(name, -1) for name in images.classes], dtype=np.int64)[images.labels]
    return _Part(images, np.arange(len(images)), tuple(classes), labels)


def per_class_fraction(images: LabelledImages, f: float, seed: int = 0) -> LabelledImages:
    """A fraction f of every class (rounded, at least one image), chosen by a hash of seed and name.

    The chosen sets are nested: with the same seed, a smaller fraction is contained in a larger one.
    """
    if not 0 < f <= 1:
        raise ValueError(f"the fraction of each class must be in (0, 1], got {f}")
    ranks = name_ranks(images.names, seed)
    chosen = []
    for label in range(len(images.classes)):
        members = np.flatnonzero(images.labels == label)
        keep = min(len(members), max(1, round(f * len(members))))
        chosen.append(members[np.argsort(ranks[members], kind="stable")[:keep]])
    return subset(images, np.sort(np.concatenate(chosen)))


def first_classes(images: LabelledImages, n: int) -> LabelledImages:
    """Only the first n classes."""
    if not 1 <= n <= len(images.classes):
        raise ValueError(f"the number of classes must be in 1..{len(images.classes)}, got {n}")
    kept = np.flatnonzero(images.labels < n)
    if not len(kept):
        raise ValueError(
            f"a split of {len(images)} images has none of the first {n} classes "
            f"({printable(', '.join(images.classes[:n]))}); keep more classes, or add images of these"
        )
    return _Part(images, kept, images.classes[:n])
