"""Which images an epoch shows, in which order, and which of them belong to one process at one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearsight.randomness import permutation, sample_keys


@dataclass(frozen=True)
class EpochOrder:
    """One epoch's samples in order: sample i shows image indices[i] with augmentation key keys[i]."""

    epoch: int
    indices: np.ndarray
    """int64 [M]: positions in the image set."""
    repeats: np.ndarray
    """int64 [M]: which showing of the image this is (0 without repeated augmentation)."""
    keys: np.ndarray
    """int64 [M]: hash of (seed, epoch, index, repeat); everything random about a sample follows from it."""

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


def epoch_order(count: int, seed: int, epoch: int, *, repeats: int = 1, shuffle: bool = True) -> EpochOrder:
    """The order of one epoch over `count` images: a pure function of its arguments.

    With repeated augmentation (`repeats` = r > 1) an epoch still has `count` samples: count / r images, r differently
    augmented copies of each, side by side, so that they meet in one global batch. One permutation serves r epochs in
    turn, hence every image is shown exactly r times in every r epochs.
    """
    if count < 1 or repeats < 1:
        raise ValueError(f"count and repeats must be positive, got {count} and {repeats}")
    slots = np.arange(count, dtype=np.int64) + (epoch % repeats) * count
    order = permutation(count, seed, epoch // repeats) if shuffle else np.arange(count, dtype=np.int64)
    indices, showing = order[slots // repeats], slots % repeats
    return EpochOrder(epoch, indices, showing, sample_keys(seed, epoch, indices, showing))
