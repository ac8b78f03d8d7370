"""The per-image path: what a dataloader worker does to one decoded image. All leave as uint8 [3, size, size]."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearsight.images.augmentation import Augment, Interpolation

_RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """The global generators of Python, NumPy and torch start from `key` inside and are put back afterwards.

    torchvision's transforms draw from those; nothing else may notice.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002
    torch.default_generator.manual_seed(key)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)


def to_tensor(image: Image.Image | np.ndarray) -> Tensor:
    """[H, W, 3] to a uint8 tensor [3, H, W] with memory of its own."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def resized_shape(height: int, width: int, size: int, crop_ratio: float) -> tuple[int, int]:
    """Whole pixels as torchvision and timm round them, so that published accuracies can be met exactly."""
    short = math.floor(size / crop_ratio)
    if height <= width:
        return short, int(short * width / height)
    return int(short * height / width), short


class EvalTransform:
    """Resize the short side to size / crop_ratio, take the centre size × size. The key is ignored."""

    def __init__(self, size: int, *, crop_ratio: float = 0.875, interpolation: Interpolation = "bicubic") -> None:
        if not 0 < crop_ratio <= 1:
            raise ValueError(f"crop_ratio must be in (0, 1], got {crop_ratio}")
        self.size, self.crop_ratio, self.interpolation = size, crop_ratio, interpolation

    def __call__(self, image: np.ndarray, key: int = 0) -> Tensor:
        height, width = image.shape[:2]
        if (height, width) != (self.size, self.size) or self.crop_ratio != 1.0:
            image = self._fit(image)
        return to_tensor(image)

    def _fit(self, image: np.ndarray) -> np.ndarray:
        """Only the window that is kept is resized: a 10 000 × 1 image never becomes a very wide one."""
        height, width = image.shape[:2]
        full_height, full_width = resized_shape(height, width, self.size, self.crop_ratio)
        top, left = (round((side - self.size) / 2) for side in (full_height, full_width))
        rows, cols = height / full_height, width / full_width
        window = (left * cols, top * rows, (left + self.size) * cols, (top + self.size) * rows)
        window = (window[0], window[1], min(window[2], width), min(window[3], height))
        resized = Image.fromarray(image).resize((self.size, self.size), _RESAMPLE[self.interpolation], box=window)
        return np.asarray(resized)


class TrainCrop:
    """The training crop by torchvision, seeded by the sample's key; BatchAugment does the rest (`cropped=True`)."""

    def __init__(self, augment: Augment) -> None:
        from torchvision import transforms

        size = augment.size
        self._size = size
        self._fit_first = augment.crop != "resized"
        self._fit = EvalTransform(size, crop_ratio=1.0, interpolation=augment.interpolation)
        steps: list = []
        if augment.crop == "resized":
            steps.append(
                transforms.RandomResizedCrop(
                    size, augment.crop_scale, augment.crop_ratio, transforms.InterpolationMode(augment.interpolation)
                )
            )
        elif augment.crop == "pad":
            steps.append(transforms.RandomCrop(size, padding=augment.padding))
        self._steps = transforms.Compose(steps)

    def __call__(self, image: np.ndarray, key: int) -> Tensor:
        if self._fit_first and image.shape[:2] != (self._size, self._size):
            image = self._fit._fit(image)
        with seeded(key):
            return to_tensor(self._steps(Image.fromarray(image)))
