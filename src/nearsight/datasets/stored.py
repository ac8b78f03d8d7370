"""Image sets over what is stored: files of a folder, encoded images in one buffer, or plain pixel arrays."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nearsight.datasets.labelled import digest
from nearsight.images.decode import DEFAULT_LIMITS, Limits, decode_image, read_image_file
from nearsight.images.imageset import PackedNames


def _as_labels(labels: Sequence[int] | np.ndarray, count: int, num_classes: int) -> np.ndarray:
    out = np.asarray(labels, dtype=np.int64).reshape(-1)
    if len(out) != count:
        raise ValueError(f"{count} images but {len(out)} labels")
    if count and (out.min() < 0 or out.max() >= num_classes):
        raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {out.min()}..{out.max()}")
    return out


class FileImages:
    """One file per image; names are paths relative to `root`."""

    def __init__(
        self,
        root: Path,
        names: Iterable[str],
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.root, self.classes, self.limits = Path(root), tuple(classes), limits
        self.names = PackedNames(names)
        self.labels = _as_labels(labels, len(self.names), len(self.classes))

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> np.ndarray:
        name = self.names[index]
        return read_image_file(self.root / name, name, self.limits)

    def fingerprint(self) -> str:
        return digest(self.names, self.labels, self.classes, (self._size(name) for name in self.names))

    def _size(self, name: str) -> int:
        try:
            return (self.root / name).stat().st_size
        except OSError:
            return -1


class EncodedImages:
    """Encoded images back to back in one buffer: image i is buffer[ends[i-1] : ends[i]]."""

    def __init__(
        self,
        buffer: np.ndarray,
        ends: np.ndarray,
        names: Iterable[str],
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.classes, self.limits = tuple(classes), limits
        self._buffer, self._bounds = buffer, np.concatenate([[0], np.asarray(ends, dtype=np.int64)])
        if np.any(np.diff(self._bounds) < 0) or self._bounds[-1] > len(buffer):
            raise ValueError("the offsets of the encoded images do not fit their buffer")
        self.names = PackedNames(names)
        self.labels = _as_labels(labels, len(self._bounds) - 1, len(self.classes))

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> np.ndarray:
        data = self._buffer[self._bounds[index] : self._bounds[index + 1]].tobytes()
        return decode_image(data, self.names[index], self.limits)

    def fingerprint(self) -> str:
        return digest(self.names, self.labels, self.classes, np.diff(self._bounds))


class ArrayImages:
    """Pixels in one uint8 array [N, H, W, 3]."""

    def __init__(
        self, pixels: np.ndarray, labels: Sequence[int] | np.ndarray, classes: Sequence[str], label: str = "row"
    ) -> None:
        self._pixels, self._label, self.classes = pixels, label, tuple(classes)
        self.labels = _as_labels(labels, len(pixels), len(self.classes))
        self.names = PackedNames(f"{label} {row}" for row in range(len(pixels)))

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> np.ndarray:
        return self._pixels[index]

    def fingerprint(self) -> str:
        stride = max(1, len(self) // 1000)  # a thousand rows stand for all: cheap, and enough to notice other data
        checksum = zlib.crc32(self._pixels[::stride].tobytes())
        return digest([self._label], self.labels, self.classes, (*self._pixels.shape, checksum))
