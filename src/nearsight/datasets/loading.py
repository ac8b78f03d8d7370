"""Labelled images as tensors: in batches for a stream, or all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from nearsight.datasets.labelled import LabelledImages
from nearsight.images.augmentation import BatchAugment
from nearsight.images.imageset import BadImageLog, read_or_replace
from nearsight.images.transforms import EvalTransform
from nearsight.randomness import hash32
from nearsight.text import printable

_MOST_STAND_INS = 64
_CHUNK = 256  # images that a thread loads at a time
_PIXELS_AT_ONCE = 2**19  # that a worker augments: ten images of 224 pixels; in more memory each operation takes longer

Transform = Callable[[np.ndarray, int], Tensor]
"""(uint8 [H, W, 3], key of the sample) → tensor, the same shape for every image."""


class LabelledBatches:
    """Makes batches for a stream. An image that cannot be read is replaced by another of its class.

    `transform` is given each image, `augment` the whole batch with its keys; without it that is left to the device.
    """

    def __init__(self, images: LabelledImages, transform: Transform, augment: BatchAugment | None = None) -> None:
        self.images, self.transform, self.augment = images, transform, augment

    def __call__(self, indices: np.ndarray, keys: np.ndarray, found: dict[str, str]) -> dict[str, Tensor]:
        pixels = [self.read(int(index), int(key), found) for index, key in zip(indices, keys, strict=True)]
        sample_keys = torch.from_numpy(keys)
        if self.augment is not None:
            at_once = max(1, _PIXELS_AT_ONCE // pixels[0][0].numel())
            starts = range(0, len(pixels), at_once)
            parts = ((torch.stack(pixels[i : i + at_once]), sample_keys[i : i + at_once]) for i in starts)
            pixels = [image for part in parts for image in self.augment(*part)]
        return {
            "images": default_collate(pixels),  # in a worker, straight into memory that the main process shares
            "labels": torch.from_numpy(self.images.labels[indices]),
            "indices": torch.from_numpy(indices),
            "keys": sample_keys,
        }

    def read(self, index: int, key: int, found: dict[str, str]) -> Tensor:
        pixels, _ = read_or_replace(self.images, index, self._same_class, found)
        return self.transform(pixels, key)

    def _same_class(self, index: int) -> tuple[str, Sequence[int]]:
        """As they come from the same class, the label stays true."""
        label = self.images.labels[index]
        members = np.flatnonzero(self.images.labels == label)
        rolled = np.roll(members, -(hash32(index) % len(members)))[:_MOST_STAND_INS]
        return f"class {printable(self.images.classes[label])!r}", rolled[rolled != index].tolist()


def load_all(
    images: LabelledImages, size: int, *, bad: BadImageLog | None = None, interpolation: str = "bicubic"
) -> Tensor:
    """Every image as one uint8 tensor [N, 3, size, size]: short side resized to `size`, centre cropped.

    A bad image is replaced by another of its class and noted in `bad`.
    """
    log = BadImageLog(len(images)) if bad is None else bad
    batches = LabelledBatches(images, EvalTransform(size, crop_ratio=1.0, interpolation=interpolation))
    out = torch.empty((len(images), 3, size, size), dtype=torch.uint8)

    def load(start: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for index in range(start, min(start + _CHUNK, len(images))):
            out[index] = batches.read(index, 0, found)
        return found

    # Decoding releases the GIL, so threads help; results are taken in order, so reports do not depend on them.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for found in pool.map(load, range(0, len(images), _CHUNK)):
            log.add(found)
    return out
