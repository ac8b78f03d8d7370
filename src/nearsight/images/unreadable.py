"""What happens when an image cannot be read: it is replaced, counted and named; too many stop the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from nearsight.images.imageset import BadImage, ImageSet
from nearsight.randomness import hash32
from nearsight.text import printable

BadImagePolicy = Literal["skip", "error"]


class TooManyBadImages(ValueError):
    """More unreadable images than the run may pass over."""


class BadImageLog:
    """The unreadable images met so far. The policy `skip` tolerates a share of the set, `error` tolerates none."""

    def __init__(self, count: int, *, policy: BadImagePolicy = "skip", cap: float = 0.001, at_least: int = 5) -> None:
        if policy not in ("skip", "error"):
            raise ValueError(f"the policy for bad images must be skip or error, got {policy!r}")
        if not 0 <= cap <= 1:
            raise ValueError(f"the tolerated share of bad images must be in 0..1, got {cap}")
        self.policy: BadImagePolicy = policy
        self.reasons: dict[str, str] = {}
        self._count = count
        self.limit = 0 if policy == "error" else min(count, max(at_least, math.ceil(cap * count)))

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, found: Mapping[str, str]) -> None:
        """Note name → reason; each image counts once, however often it is met. Raises when over the limit."""
        self.reasons.update(found)
        if len(self.reasons) > self.limit:
            if self.policy == "error":
                raise BadImage(*next(iter(self.reasons.items())))
            raise TooManyBadImages(f"{self.summary()}; at most {self.limit} are passed over: remove or repair them")

    def summary(self, show: int = 5) -> str:
        """One line: how many, and the first few with reasons."""
        if not self.reasons:
            return "all images readable"
        first = "; ".join(f"{printable(name)}: {printable(why)}" for name, why in list(self.reasons.items())[:show])
        more = f"; and {len(self) - show} more" if len(self) > show else ""
        return f"{len(self)} of {self._count} images unreadable ({first}{more})"


def read_or_replace(images: ImageSet, index: int, found: dict[str, str], *, tries: int = 64) -> np.ndarray:
    """Read an image; where it is bad, note it in `found` and read another of its class instead.

    The stand-in depends on the index alone, so every process, worker and epoch agrees on it, and as it comes from the
    same class the label stays true.
    """
    try:
        return images.read(index)
    except BadImage as bad:
        found[bad.name] = bad.reason
    label = images.labels[index]
    members = np.flatnonzero(np.asarray(images.labels) == label)
    start = hash32(index) % len(members)
    for candidate in np.roll(members, -start)[:tries]:
        try:
            return images.read(int(candidate))
        except BadImage as bad:
            found[bad.name] = bad.reason
    raise TooManyBadImages(
        f"class {printable(images.classes[label])!r}: no readable image among {min(tries, len(members))} tried, "
        f"for example {printable(images.names[index])}: {printable(found[images.names[index]])}"
    )
