"""What a set of images with boxes is, and the checks that every box passes whatever file it comes from.

Refused, with the file and the box named: coordinates that are not finite numbers, corners in the wrong order, classes
that were not declared, paths that leave the data's folder. Handled, counted and reported: boxes that reach over the
image's edge (cut), boxes without area (left out), crowds (neither learned nor counted as missed), images without boxes
(kept: a detector must see background).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from nearsight.datasets.content import file_checksums
from nearsight.images.decode import read_image_file
from nearsight.images.fingerprints import join_fingerprint
from nearsight.images.imageset import BadImage, PackedNames, Splits, name_ranks
from nearsight.text import printable

_OVERHANG = 1.0  # pixels over the edge that are rounding, not worth a note


class Annotations(NamedTuple):
    """The boxes of one image."""

    boxes: np.ndarray
    """float64 [m, 4]: left, top, right, bottom in pixels."""
    labels: np.ndarray
    """int64 [m]: positions in the set's classes."""
    crowd: np.ndarray
    """bool [m]: a region of many, or an object marked as difficult; detections there are neither right nor wrong."""
    areas: np.ndarray
    """float64 [m]: pixels of the object itself where the source tells, else of its box."""

    def learnable(self) -> Annotations:
        """Without the crowds."""
        return Annotations(*(values[~self.crowd] for values in self))


@dataclass(frozen=True)
class DetectionSet:
    """Images with boxes, with random access. Arrays only, so that forked and spawned workers get it cheaply."""

    root: Path
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    """The source's own number of each class, for result files."""
    names: PackedNames
    """Paths below root; also the images' names in reports."""
    image_ids: np.ndarray
    """int64 [N]: the source's own number of each image."""
    sizes: np.ndarray
    """int64 [N, 2]: height, width."""
    ends: np.ndarray
    """int64 [N]: image i has the boxes ends[i-1] to ends[i] of the arrays below."""
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def num_learnable(self) -> int:
        """Boxes, crowds left out."""
        return int((~self.crowd).sum())

    def annotations(self, index: int) -> Annotations:
        start, end = (int(self.ends[index - 1]) if index else 0), int(self.ends[index])
        return Annotations(self.boxes[start:end], self.labels[start:end], self.crowd[start:end], self.areas[start:end])

    def read(self, index: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB, upright. Raises BadImage, also where the size is not the one its boxes refer to."""
        name = self.names[index]
        image = read_image_file(self.root / name, name)
        height, width = (int(side) for side in self.sizes[index])
        if image.shape[:2] != (height, width):
            raise BadImage(name, f"is {image.shape[1]}×{image.shape[0]}, but its boxes are for {width}×{height} pixels")
        return image

    def most_boxes(self) -> int:
        """Of one image, crowds left out."""
        learnable = np.concatenate(([0], np.cumsum(~self.crowd)))
        counts = np.diff(np.concatenate(([0], learnable[self.ends])))
        return int(counts.max(initial=0))

    def subset(self, indices: Iterable[int]) -> DetectionSet:
        chosen = [int(index) for index in indices]
        parts = [self.annotations(index) for index in chosen]
        return DetectionSet(
            self.root,
            self.classes,
            self.category_ids,
            PackedNames(self.names[index] for index in chosen),
            self.image_ids[chosen],
            self.sizes[chosen],
            np.cumsum([len(part.labels) for part in parts], dtype=np.int64),
            *(np.concatenate([part[field] for part in parts]) for field in range(4)),
        )

    def fingerprint(self) -> str:
        """Of names, sizes, classes and boxes, and of what every file holds."""
        state = hashlib.sha256()
        for text in (*self.classes, "\0", *self.names):
            state.update(text.encode("utf-8", "surrogateescape") + b"\0")
        for values in (self.sizes, self.ends, self.boxes, self.labels, self.crowd):
            state.update(np.ascontiguousarray(values).tobytes())
        return join_fingerprint(state.hexdigest(), file_checksums(self.root, list(self.names)))


DetectionSplits = Splits[DetectionSet]


class BoxCollector:
    """Takes images and boxes from a reader, checks them and builds the set."""

    def __init__(self, root: Path, classes: Sequence[str], category_ids: Sequence[int] | None = None) -> None:
        if not classes:
            raise ValueError(f"{printable(str(root))}: no classes are declared")
        if len(set(classes)) != len(classes):
            double = next(name for name in classes if list(classes).count(name) > 1)
            raise ValueError(f"{printable(str(root))}: class {printable(double)!r} is declared twice")
        self.root, self.classes = root, tuple(classes)
        self.category_ids = tuple(range(len(classes)) if category_ids is None else category_ids)
        self.notes: dict[str, tuple[int, str]] = {}
        self._names: list[str] = []
        self._ids: list[int] = []
        self._sizes: list[tuple[int, int]] = []
        self._boxes: list[list[tuple[float, ...]]] = []

    def note(self, what: str, where: str) -> None:
        """Count something that was corrected or left out, and keep where it occurred first."""
        count, first = self.notes.get(what, (0, where))
        self.notes[what] = (count + 1, first)

    def add_image(self, name: str, size: tuple[int, int], image_id: int) -> int:
        """Declare an image by its path below root and (height, width); returns its position."""
        if min(size) < 1:
            raise ValueError(f"{printable(name)}: an image of {size[1]}×{size[0]} pixels")
        self._names.append(name)
        self._ids.append(image_id)
        self._sizes.append(size)
        self._boxes.append([])
        return len(self._names) - 1

    def add_box(
        self,
        image: int,
        corners: Sequence[float],
        label: int,
        where: str,
        *,
        crowd: bool = False,
        area: float | None = None,
    ) -> None:
        """A box (left, top, right, bottom) in pixels; `where` names file and box in messages."""
        left, top, right, bottom = corners
        if not all(math.isfinite(value) for value in corners):
            raise ValueError(f"{where}: coordinates {list(corners)} are not finite numbers; correct or remove the box")
        if right < left or bottom < top:
            raise ValueError(
                f"{where}: the box's corners are in the wrong order (left {left:g}, top {top:g}, right {right:g}, "
                f"bottom {bottom:g}); correct or remove it"
            )
        if not 0 <= label < len(self.classes):
            raise ValueError(
                f"{where}: there is no class {label}; they count from 0 to {len(self.classes) - 1}: add a name for it"
            )
        height, width = self._sizes[image]
        inside = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            empty = right == left or bottom == top
            self.note("boxes without area left out" if empty else "boxes outside their image left out", where)
            return
        if max(abs(new - old) for new, old in zip(inside, corners, strict=True)) > _OVERHANG:
            self.note("boxes cut at the image's edge", where)
        if crowd:
            self.note("crowds or difficult objects, neither learned nor counted as missed", where)
        own_area = (inside[2] - inside[0]) * (inside[3] - inside[1]) if area is None else area
        self._boxes[image].append((*inside, label, crowd, own_area))

    def build(self) -> DetectionSet:
        if not self._names:
            raise ValueError(f"{printable(str(self.root))}: no images")
        empty = [name for name, boxes in zip(self._names, self._boxes, strict=True) if not boxes]
        for name in empty:
            self.note("images without boxes, kept as background", printable(name))
        values = np.array([box for boxes in self._boxes for box in boxes], dtype=np.float64).reshape(-1, 7)
        return DetectionSet(
            self.root,
            self.classes,
            self.category_ids,
            PackedNames(self._names),
            np.array(self._ids, dtype=np.int64),
            np.array(self._sizes, dtype=np.int64),
            np.cumsum([len(boxes) for boxes in self._boxes], dtype=np.int64),
            values[:, :4].copy(),
            values[:, 4].astype(np.int64),
            values[:, 5].astype(bool),
            values[:, 6].copy(),
        )

    def summary(self) -> tuple[str, ...]:
        return tuple(f"{count} {what} (first: {first})" for what, (count, first) in self.notes.items())


def safe_relative(name: str, where: str) -> str:
    """A path from an annotation file, refused when it could leave the folder it is meant for."""
    path = PurePosixPath(name.replace("\\", "/"))
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or ":" in path.parts[0]:
        raise ValueError(f"{where}: the path {printable(name)!r} leaves the data's folder; use one below it")
    return str(path)


def hold_out(images: DetectionSet, fraction: float, seed: int) -> tuple[DetectionSet, DetectionSet]:
    """(train, val): an image goes to val when the hash of (seed, name) says so; both have at least one."""
    if len(images) < 2:
        raise ValueError("one image cannot be in train and val; add more or give a val split")
    ranks = name_ranks(images.names, seed)
    held = ranks < fraction
    held[np.argmin(ranks)], held[np.argmax(ranks)] = True, False
    return images.subset(np.flatnonzero(~held)), images.subset(np.flatnonzero(held))
