"""Which images an epoch shows, in which order, and its batches: read by workers, or indices of what is on the device.

Same samples in the same order either way. They do not depend on the number of workers or processes, nor on the step
the epoch starts at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nearsight.images.imageset import BadImageLog, TooManyBadImages
from nearsight.randomness import CLASS_STREAM, ROUND_STREAM, hash32, permutation, sample_keys

MakeBatch = Callable[[np.ndarray, np.ndarray, dict[str, str]], dict[str, Tensor]]
"""(indices [b], augmentation keys [b], where to note unreadable images) → the batch, tensors by name."""


@dataclass(frozen=True)
class EpochOrder:
    """One epoch's samples in order: sample i shows image indices[i] with augmentation key keys[i]."""

    indices: np.ndarray
    """int64 [M]: positions in the image set."""
    repeats: np.ndarray
    """int64 [M]: which showing of the image this is (0 without repeated augmentation)."""
    keys: np.ndarray
    """int64 [M]: hash of (seed, pass, index, repeat); everything random about a sample follows from it."""

    def __len__(self) -> int:
        return len(self.indices)

    def steps(self, batch: int, *, drop_last: bool = True) -> int:
        """Steps of `batch` samples (over all processes) in the epoch."""
        return len(self) // batch if drop_last else -(-len(self) // batch)

    def part(self, step: int, batch: int, rank: int = 0, world: int = 1) -> slice:
        """What process `rank` of `world` takes at `step`: slice `rank` of the global batch (short at the end)."""
        local = local_batch(batch, world)
        start = step * batch + rank * local
        end = min(start + local, (step + 1) * batch, len(self))
        return slice(min(start, end), end)

    def parts(
        self, batch: int, rank: int = 0, world: int = 1, *, start_step: int = 0, drop_last: bool = True
    ) -> list[slice]:
        """What process `rank` takes at each step from `start_step` on, but for steps of which it has no share."""
        local_batch(batch, world)
        steps = self.steps(batch, drop_last=drop_last)
        if steps == 0:
            raise ValueError(
                f"a global batch of {batch} is larger than the {len(self)} samples of an epoch: make it smaller"
            )
        if not 0 <= start_step <= steps:
            raise ValueError(f"cannot start at step {start_step}: the epoch has {steps}")
        parts = (self.part(step, batch, rank, world) for step in range(start_step, steps))
        return [part for part in parts if part.start < part.stop]


def local_batch(batch: int, world: int) -> int:
    """Samples per process; a global batch that does not divide would make results depend on the number of processes."""
    if batch < 1 or world < 1:
        raise ValueError(f"batch and number of processes must be positive, got {batch} and {world}")
    if batch % world:
        fitting = ", ".join(str(n) for n in range(1, min(batch, 64) + 1) if batch % n == 0)
        raise ValueError(
            f"a global batch of {batch} cannot be shared by {world} processes; numbers that fit: {fitting}"
        )
    return batch // world


def epoch_order(
    count: int, seed: int, epoch: int, *, size: int | None = None, repeats: int = 1, shuffle: bool = True
) -> EpochOrder:
    """The order of one epoch over `count` images: a pure function of its arguments.

    An epoch has `size` samples (by default `count`). Where the images are a share of a larger set, `size` is that of
    the larger set: the epoch then has several passes over the images, each in an order of its own, and goes on where
    the one before it ended. An image may come twice in the batch in which one pass ends and the next begins.

    With repeated augmentation (`repeats` = r > 1) the length stays: size / r images, r differently augmented copies of
    each, side by side, so that they meet in one global batch. One permutation serves r passes in turn, hence every
    image is shown exactly r times in every r passes.
    """
    if count < 1 or repeats < 1 or (size is not None and size < 1):
        raise ValueError(f"count, size and repeats must be positive, got {count}, {size} and {repeats}")
    size = count if size is None else size
    places = np.arange(epoch * size, (epoch + 1) * size, dtype=np.int64)
    cycles, slots = np.divmod(places, count * repeats)
    orders = np.stack(
        [
            permutation(count, seed, cycle) if shuffle else np.arange(count, dtype=np.int64)
            for cycle in range(int(cycles[0]), int(cycles[-1]) + 1)
        ]
    )
    indices, showing = orders[cycles - cycles[0], slots // repeats], slots % repeats
    return EpochOrder(indices, showing, sample_keys(seed, places // count, indices, showing))


def balanced_order(labels: np.ndarray, seed: int, epoch: int, *, size: int, repeats: int = 1) -> EpochOrder:
    """The order of one epoch that shows every class as often: a pure function of its arguments, as `epoch_order` is.

    Rounds follow one another through the epochs. A round shows one image of each class, in an order of its own; a class
    shows all of its images, in a new order, before one comes again. With repeated augmentation an image takes `repeats`
    places of the epoch, side by side.
    """
    members = [found for label in range(int(labels.max()) + 1) if len(found := np.flatnonzero(labels == label))]
    places = np.arange(epoch * size, (epoch + 1) * size, dtype=np.int64)
    slots, showing = np.divmod(places, repeats)
    rounds, turns = np.divmod(slots, len(members))
    first = int(rounds[0])
    each = np.arange(first, int(rounds[-1]) + 1)
    order = _shuffled(len(members), seed, ROUND_STREAM, each)[rounds - first, turns]  # which class
    indices, passes = np.empty_like(slots), np.empty_like(slots)
    for place, own in enumerate(members):
        shown = np.flatnonzero(order == place)
        passes[shown], within = np.divmod(rounds[shown], len(own))
        start, end = each[0] // len(own), each[-1] // len(own)
        orders = _shuffled(len(own), seed, CLASS_STREAM, np.arange(start, end + 1), place)
        indices[shown] = own[orders[passes[shown] - start, within]]
    return EpochOrder(indices, showing, sample_keys(seed, passes, indices, showing))


def _shuffled(count: int, seed: int, stream: int, numbers: np.ndarray, *key: int) -> np.ndarray:
    """[len(numbers), count]: for each number a permutation of range(count) of its own."""
    positions = np.arange(count, dtype=np.int64)
    high, low = (hash32(seed, stream, numbers[:, None], *key, positions, half) for half in (0, 1))
    return np.argsort((high << 31) | (low >> 1), axis=1, kind="stable")


class _Batches(Dataset):
    """Item `part` is the batch of that slice of the order, the bad images met, and what stopped it, if so."""

    def __init__(self, make: MakeBatch, order: EpochOrder) -> None:
        self.make, self.order = make, order

    def __getitem__(self, part: slice) -> tuple[dict[str, Tensor] | None, dict[str, str], str]:
        found: dict[str, str] = {}
        try:
            return self.make(self.order.indices[part], self.order.keys[part], found), found, ""
        except TooManyBadImages as error:  # returned, not raised: the loader would wrap it in a worker's traceback
            return None, found, str(error)


class BatchStream:
    """The batches of parts of an epoch's order (see `EpochOrder.parts`), made by `workers` processes.

    The global random generators of Python, NumPy and torch are left as they are.
    """

    def __init__(
        self,
        make: MakeBatch,
        order: EpochOrder,
        parts: Sequence[slice],
        *,
        workers: int = 0,
        bad: BadImageLog | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.bad = BadImageLog(len(order)) if bad is None else bad
        self._loader = DataLoader(
            _Batches(make, order),
            batch_size=None,
            sampler=parts,
            num_workers=workers,
            # The loader draws one number per epoch from its generator, by default the global one: give it its own.
            generator=torch.Generator().manual_seed(0),
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch, found, error in self._loader:
            if found:
                self.bad.add(found)
            if error:
                raise TooManyBadImages(error)
            yield batch


def device_batches(
    order: EpochOrder, parts: Sequence[slice], device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """(indices, augmentation keys) of parts of an epoch's order, for images that are on the device already.

    The order is copied once; a batch is a slice of it and never waits for the device.
    """
    indices, keys = torch.from_numpy(order.indices).to(device), torch.from_numpy(order.keys).to(device)
    return ((indices[part], keys[part]) for part in parts)
