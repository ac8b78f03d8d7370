"""Augmentation of training images: crops by a dataloader's worker, or whole batches on any device.

In batches it is a pure function of images and sample keys, with static shapes, no loop over images and no wait for the
device: the module can be compiled as one graph and captured in a CUDA graph. An image's augmentation does not depend
on which other images are in its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearsight.images import batch_geometry as geometry
from nearsight.images import rand_augment
from nearsight.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from nearsight.images.transforms import EvalTransform, Normalize, to_tensor
from nearsight.randomness import hash32, to_unit

_CROP_DRAWS = 2 * geometry.CROP_TRIES + 2
_ERASE_DRAWS = 2 * geometry.ERASE_TRIES + 3
_RAND_DRAWS = 4  # operation, whether, magnitude, sign


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to a training image between reading and the model."""

    size: int
    """Side of the square image the model receives."""
    crop: Literal["resized", "pad", "none"] = "resized"
    """resized: random area and aspect, resized; pad: pad, then crop at random (small images); none: as it is."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of the image's area in a resized crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest aspect (width / height) of a resized crop."""
    padding: int = 4
    """Black pixels added on each side before a pad crop."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    rand_num_ops: int = 0
    """RandAugment operations per image; 0 turns it off."""
    rand_magnitude: float = 9.0
    """RandAugment strength, 0 to 10."""
    rand_std: float = 0.5
    """Standard deviation of the strength."""
    rand_prob: float = 0.5
    """Probability that a chosen RandAugment operation is carried out."""
    jitter: float = 0.0
    """Colour jitter: brightness, contrast and saturation factors in 1 ± jitter."""
    erase: float = 0.0
    """Probability that a rectangle is erased, which is filled with normal noise."""
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    """Smallest and largest share of the area that is erased."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Subtracted per channel (images in 0..1)."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Divided by per channel."""
    interpolation: str = "bicubic"
    """How pixels between pixels are found: bicubic or bilinear."""

    def __post_init__(self) -> None:
        if self.crop not in ("resized", "pad", "none"):
            raise ValueError(f"crop must be resized, pad or none, got {self.crop!r}")


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
        with torch.random.fork_rng(devices=[]):  # torchvision's crops draw from torch's global generator
            torch.default_generator.manual_seed(key)
            return to_tensor(self._steps(Image.fromarray(image)))


class BatchAugment(nn.Module):
    """uint8 [B, 3, H, W] and keys int64 [B] → normalised float32 [B, 3, size, size].

    `cropped` says that a worker has already cut the images to size.
    """

    fill: Tensor

    def __init__(self, augment: Augment, *, cropped: bool = False) -> None:
        super().__init__()
        self.augment, self.cropped = augment, cropped
        self.normalize = Normalize(augment.mean, augment.std)
        mean = torch.tensor(augment.mean)
        self.register_buffer("fill", torch.round(mean * 255), persistent=False)

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        augment = self.augment
        slots = torch.arange(
            1 + _CROP_DRAWS + 3 + _ERASE_DRAWS + _RAND_DRAWS * augment.rand_num_ops, device=keys.device
        )
        unit = to_unit(hash32(keys[:, None], slots))  # every random number an image needs, [B, slots]
        flip_draw, crop_draw, jitter_draw, erase_draw, rand_draw = unit.split(
            [1, _CROP_DRAWS, 3, _ERASE_DRAWS, _RAND_DRAWS * augment.rand_num_ops], dim=1
        )
        pixels = images.to(torch.float32, copy=True)
        pixels = self._place(pixels, crop_draw, flip_draw[:, 0] < augment.flip)
        for slot in range(augment.rand_num_ops):
            pixels = self._rand_augment(pixels, rand_draw[:, slot * _RAND_DRAWS : (slot + 1) * _RAND_DRAWS])
        if augment.jitter:
            pixels = self._jitter(pixels, jitter_draw)
        if pixels.shape[-2:] != (augment.size, augment.size):
            raise ValueError(f"images are {tuple(pixels.shape[-2:])}, expected {augment.size} × {augment.size}")
        out = self.normalize(pixels)
        return self._erase(out, keys, erase_draw) if augment.erase else out

    def _place(self, pixels: Tensor, unit: Tensor, flip: Tensor) -> Tensor:
        augment, (height, width) = self.augment, pixels.shape[-2:]
        if self.cropped or augment.crop == "none":
            if not geometry.may_ask(pixels):
                return torch.where(flip[:, None, None, None], pixels.flip(-1), pixels)
            rows = flip.nonzero().squeeze(1)
            pixels[rows] = pixels[rows].flip(-1)
            return pixels
        if augment.crop == "pad":
            if min(height, width) + 2 * augment.padding < augment.size:
                raise ValueError(f"images of {height} × {width} are too small to crop {augment.size} × {augment.size}")
            return geometry.pad_crop(pixels, unit[:, :2], flip, augment.padding, augment.size)
        boxes = geometry.crop_boxes(unit, augment.crop_scale, augment.crop_ratio, height, width)
        cropped = geometry.crop_resize(pixels, boxes, flip, augment.size, augment.interpolation)
        return torch.round(cropped).clamp(0, 255)

    def _rand_augment(self, pixels: Tensor, unit: Tensor) -> Tensor:
        augment = self.augment
        operation = torch.floor(unit[:, 0] * rand_augment.NUM_CHOICES).long()
        operation = torch.where(unit[:, 1] < augment.rand_prob, operation, rand_augment.CODE["identity"])
        noise = augment.rand_std * geometry.normal_from_unit(unit[:, 2])
        magnitude = (augment.rand_magnitude + noise).clamp(0, 10)
        sign = torch.where(unit[:, 3] < 0.5, -1.0, 1.0)
        choice = rand_augment.Choice(operation, magnitude, sign)
        apply = rand_augment.apply_sparse if geometry.may_ask(pixels) else rand_augment.apply_dense
        return apply(pixels, choice, self.fill, augment.interpolation)

    def _jitter(self, pixels: Tensor, unit: Tensor) -> Tensor:
        """Brightness, contrast, saturation, in this order (torchvision draws the order too)."""
        factor = 1 + self.augment.jitter * (2 * unit - 1)
        brightness, contrast, saturation = (value[:, None, None, None] for value in factor.unbind(1))
        pixels = rand_augment.blend(torch.zeros_like(pixels), pixels, brightness)
        pixels = rand_augment.blend(rand_augment.mean_grey(pixels), pixels, contrast)
        return rand_augment.saturate(pixels, saturation)

    def _erase(self, normalized: Tensor, keys: Tensor, unit: Tensor) -> Tensor:
        shape = normalized.shape[1:]
        boxes = geometry.erase_boxes(unit, self.augment.erase, self.augment.erase_area, *shape[1:])
        places = torch.arange(shape.numel(), device=keys.device).view(shape)
        if not geometry.may_ask(normalized):
            return torch.where(geometry.inside_boxes(boxes, *shape[1:]), geometry.pixel_noise(keys, places), normalized)
        for image, key, box in zip(normalized, keys.split(1), boxes.long().tolist(), strict=True):
            top, left, height, width = box
            if height:
                inside = (slice(None), slice(top, top + height), slice(left, left + width))
                image[inside] = geometry.pixel_noise(key, places[inside])[0]
        return normalized
