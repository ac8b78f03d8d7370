"""Images in batches: streamed by workers, or resident in memory. Same samples in the same order either way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nearsight.images.imageset import ImageSet
from nearsight.images.order import EpochOrder, local_batch
from nearsight.images.transforms import EvalTransform
from nearsight.images.unreadable import BadImageLog, TooManyBadImages, read_or_replace

Transform = Callable[[np.ndarray, int], Tensor]
"""(uint8 [H, W, 3], key of the sample) → tensor, the same shape for every image."""


class Batch(NamedTuple):
    images: Tensor
    """What the transform makes: uint8 [B, 3, H, W] with the transforms of this package."""
    labels: Tensor
    """int64 [B]."""
    indices: Tensor
    """int64 [B]: positions in the image set."""
    keys: Tensor
    """int64 [B]: augmentation keys, for BatchAugment."""


def _check_steps(order: EpochOrder, batch: int, world: int, drop_last: bool, start_step: int) -> int:
    local_batch(batch, world)
    steps = order.steps(batch, drop_last=drop_last)
    if steps == 0:
        raise ValueError(
            f"a global batch of {batch} is larger than the {len(order)} samples of an epoch: make it smaller"
        )
    if not 0 <= start_step <= steps:
        raise ValueError(f"cannot start at step {start_step}: the epoch has {steps}")
    return steps


class _BatchReader(Dataset):
    """Item `step` is this process's whole batch at that step, with the bad images met on the way."""

    def __init__(
        self, images: ImageSet, order: EpochOrder, batch: int, transform: Transform, rank: int, world: int
    ) -> None:
        self.images, self.order, self.batch, self.transform = images, order, batch, transform
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return self.order.steps(self.batch, drop_last=False)

    def __getitem__(self, step: int) -> tuple[Batch | None, dict[str, str], str]:
        part = self.order.part(step, self.batch, self.rank, self.world)
        indices, keys = self.order.indices[part], self.order.keys[part]
        found: dict[str, str] = {}
        try:
            stack = [
                self.transform(read_or_replace(self.images, int(index), found), int(key))
                for index, key in zip(indices, keys, strict=True)
            ]
        except TooManyBadImages as hopeless:  # told, not raised: the loader would wrap it in a worker's traceback
            return None, found, str(hopeless)
        if not stack:
            return None, found, ""
        labels = torch.from_numpy(np.asarray(self.images.labels)[indices])
        return Batch(torch.stack(stack), labels, torch.from_numpy(indices), torch.from_numpy(keys)), found, ""


class BatchStream:
    """One epoch (or the rest of one) for process `rank` of `world`, read by `workers` processes.

    Step s takes slice `rank` of the s-th global batch. The samples, their order and their augmentation do not depend on
    `workers`, `world` or `start_step`; the global random generators of Python, NumPy and torch are left as they are.
    Without `drop_last` the last batch may be short, and a process without a share of it gets none.
    """

    def __init__(
        self,
        images: ImageSet,
        order: EpochOrder,
        batch: int,
        *,
        transform: Transform,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        drop_last: bool = True,
        bad: BadImageLog | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.steps = _check_steps(order, batch, world, drop_last, start_step)
        self.start_step = start_step
        self.bad = BadImageLog(len(images)) if bad is None else bad
        # The loader draws one number per epoch from its generator, by default the global one: give it its own.
        self._loader = DataLoader(
            _BatchReader(images, order, batch, transform, rank, world),
            batch_size=None,
            sampler=range(start_step, self.steps),
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        return self.steps - self.start_step

    def __iter__(self) -> Iterator[Batch]:
        for batch, found, hopeless in self._loader:
            if found:
                self.bad.add(found)
            if hopeless:
                raise TooManyBadImages(hopeless)
            if batch is not None:
                yield Batch(*batch)


class ResidentStream:
    """The same epoch from images already loaded as one uint8 tensor [N, 3, H, W] on any device."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        order: EpochOrder,
        batch: int,
        *,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        drop_last: bool = True,
    ) -> None:
        self.steps = _check_steps(order, batch, world, drop_last, start_step)
        self.start_step = start_step
        self._images, self._labels = images, labels
        self._parts = [order.part(step, batch, rank, world) for step in range(start_step, self.steps)]
        # One copy to the device per epoch; steps are then slices of it, without waiting for the device.
        self._indices = torch.from_numpy(order.indices).to(images.device)
        self._keys = torch.from_numpy(order.keys).to(images.device)

    def __len__(self) -> int:
        return self.steps - self.start_step

    def __iter__(self) -> Iterator[Batch]:
        for part in self._parts:
            if part.start < part.stop:
                indices = self._indices[part]
                yield Batch(self._images[indices], self._labels[indices], indices, self._keys[part])


def load_all(
    images: ImageSet,
    size: int,
    *,
    progress: Callable[[int, int], None] | None = None,
    bad: BadImageLog | None = None,
    threads: int | None = None,
) -> Tensor:
    """Every image as one uint8 tensor [N, 3, size, size]: short side resized to `size`, centre cropped.

    `progress(done, total)` is called now and then. A bad image is replaced by another of its class and noted in `bad`.
    """
    log = BadImageLog(len(images)) if bad is None else bad
    fit = EvalTransform(size, crop_ratio=1.0)
    out = torch.empty((len(images), 3, size, size), dtype=torch.uint8)

    def load(chunk: range) -> tuple[dict[str, str], int]:
        found: dict[str, str] = {}
        for index in chunk:
            out[index] = fit(read_or_replace(images, index, found), 0)
        return found, len(chunk)

    chunks = [range(start, min(start + 256, len(images))) for start in range(0, len(images), 256)]
    done = 0
    # Decoding leaves Python's lock, so threads help; results are taken in order, so reports do not depend on them.
    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
        for found, count in pool.map(load, chunks):
            log.add(found)
            done += count
            if progress is not None:
                progress(done, len(images))
    return out
