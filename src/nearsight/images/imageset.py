"""What every task needs of a set of images: random access, stable names, splits, and care for unreadable images.

An image that cannot be read is replaced, counted and named; too many stop the run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar, overload

import numpy as np

from nearsight.text import printable


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
        """Text that changes when any byte of the data changes (`images.fingerprints`)."""
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
    whole: int | None = None
    """Training images of the set that `train` is a share of, if it is one."""
    not_read: Mapping[str, int] = field(default_factory=dict)
    """Files of the source that are not read: how many for each reason. `notes` tell of them."""

    @property
    def epoch_size(self) -> int:
        """Samples of an epoch: as many as the whole set has training images, however few of them are kept."""
        return len(self.train) if self.whole is None else self.whole

    def with_share(self, train: Images) -> Splits[Images]:
        """Only these of the training images; epochs stay as long as they were."""
        return replace(self, train=train, whole=self.epoch_size)

    @property
    def named(self) -> dict[str, Images]:
        """The splits that are there."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {name: images for name, images in found.items() if images is not None}

    @property
    def fingerprints(self) -> dict[str, str]:
        """By split; those of the training data are in a run's folder."""
        return {name: images.fingerprint() for name, images in self.named.items()}

    def split(self, name: str) -> Images:
        return self.named[pick_split(self.named, name)]


def pick_split(there: Iterable[str], wish: str, otherwise: Sequence[str] = ()) -> str:
    """The split that is asked for, or the first of others that is there."""
    there = list(there)
    chosen = wish or next(name for name in otherwise if name in there)
    if chosen not in there:
        raise ValueError(f"the data has no {chosen} split, but {', '.join(there)}; choose by --split")
    return chosen


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


def share_of(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Indices, in order, of a fraction of the names (rounded, at least one), by hash of seed and name.

    With the same seed, a smaller fraction is contained in a larger one.
    """
    kept = max(round(fraction * len(names)), 1)
    return np.sort(np.argsort(name_ranks(names, seed), kind="stable")[:kept])


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
