"""What happens when an image cannot be read: it is replaced, counted and named; too many stop the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nearsight.images.imageset import ImageSet
from nearsight.text import printable

StandIns = Callable[[int], tuple[str, Sequence[int]]]
"""For the image at an index: what those that may stand in for it have in common, and their indices in order."""


class BadImage(Exception):
    """An image that cannot be read: its name and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both in args, so that it survives pickling between processes
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.name)}: {printable(self.reason)}"


class TooManyBadImages(ValueError):
    """More unreadable images than the run may pass over."""


class BadImageLog:
    """The unreadable images met so far, of which a share of the set is tolerated."""

    def __init__(self, count: int, *, cap: float = 0.001, at_least: int = 5) -> None:
        if not 0 <= cap <= 1:
            raise ValueError(f"the tolerated share of bad images must be in 0..1, got {cap}")
        self.reasons: dict[str, str] = {}
        self._count = count
        self.limit = min(count, max(at_least, math.ceil(cap * count)))

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, found: Mapping[str, str]) -> None:
        """Note name → reason; each image counts once, however often it is met. Raises when over the limit."""
        self.reasons.update(found)
        if len(self.reasons) > self.limit:
            raise TooManyBadImages(f"{self.summary()}; at most {self.limit} are passed over: remove or repair them")

    def summary(self, show: int = 5) -> str:
        """One line: how many, and the first few with reasons."""
        if not self.reasons:
            return "all images readable"
        first = "; ".join(f"{printable(name)}: {printable(why)}" for name, why in list(self.reasons.items())[:show])
        more = f"; and {len(self) - show} more" if len(self) > show else ""
        return f"{len(self)} of {self._count} images unreadable ({first}{more})"


def read_or_replace(images: ImageSet, index: int, stand_ins: StandIns, found: dict[str, str]) -> tuple[np.ndarray, int]:
    """(pixels, index of what was read): the image at `index`, or the first readable stand-in.

    Unreadable images are noted in `found`. Stand-ins depend on the index alone, so that every process, worker and epoch
    agrees on them.
    """
    try:
        return images.read(index), index
    except BadImage as bad:
        first = bad
        found[bad.name] = bad.reason
    group, others = stand_ins(index)
    for other in others:
        try:
            return images.read(other), other
        except BadImage as bad:
            found[bad.name] = bad.reason
    raise TooManyBadImages(f"{group}: no readable image among {1 + len(others)} tried, for example {first}")
