"""The per-image path: what a loading worker does to one decoded image. Everything leaves as uint8 [3, size, size]."""

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

    The transforms of timm and torchvision draw from those; nothing else may notice.
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


class TrainTransform:
    """Crop, flip, RandAugment and colour jitter by timm and torchvision, seeded by the sample's key.

    With `crop_only`, just the crop: the rest is left to BatchAugment on the device (`done="crop"`), which takes most of
    the work from the workers. Normalising and erasing are always done there.
    """

    def __init__(self, augment: Augment, *, crop_only: bool = False) -> None:
        from timm.data.auto_augment import RandAugment, rand_augment_ops
        from torchvision import transforms

        size, resample = augment.size, _RESAMPLE[augment.interpolation]
        self._size = size
        steps: list = []
        if augment.crop == "resized":
            steps.append(
                transforms.RandomResizedCrop(
                    size, augment.crop_scale, augment.crop_ratio, transforms.InterpolationMode(augment.interpolation)
                )
            )
        elif augment.crop == "pad":
            steps.append(transforms.RandomCrop(size, padding=augment.padding))
        self._fit_first = augment.crop != "resized"
        if not crop_only:
            if augment.flip:
                steps.append(transforms.RandomHorizontalFlip(augment.flip))
            if augment.rand_num_ops:
                fill = tuple(round(255 * channel) for channel in augment.mean)
                settings = {
                    "img_mean": fill,
                    "interpolation": resample,
                    "magnitude_std": augment.rand_std,
                    # A strength of exactly 10 would posterize to 0 bits, which Pillow refuses.
                    "magnitude_max": 9.999,
                }
                operations = rand_augment_ops(
                    augment.rand_magnitude, augment.rand_prob, settings, list(RAND_AUGMENT_OPS)
                )
                steps.append(RandAugment(operations, augment.rand_num_ops))
            if augment.jitter:
                steps.append(transforms.ColorJitter(augment.jitter, augment.jitter, augment.jitter))
        self._steps = transforms.Compose(steps)
        self._fit = EvalTransform(size, crop_ratio=1.0, interpolation=augment.interpolation)

    def __call__(self, image: np.ndarray, key: int) -> Tensor:
        if self._fit_first and image.shape[:2] != (self._size, self._size):
            image = self._fit._fit(image)
        with seeded(key):
            return to_tensor(self._steps(Image.fromarray(image)))


# timm's names, strength growing with magnitude; the order is also BatchAugment's.
RAND_AUGMENT_OPS = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "PosterizeIncreasing",
    "SolarizeIncreasing",
    "SolarizeAdd",
    "ColorIncreasing",
    "ContrastIncreasing",
    "BrightnessIncreasing",
    "SharpnessIncreasing",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
)
