"""The batched path: augmentation of whole batches on any device, a pure function of images and sample keys.

Static shapes, no loop over images, no wait for the device: the module can be compiled as one graph and captured in a
CUDA graph. An image's augmentation does not depend on which other images are in its batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearsight.images import batch_color as color
from nearsight.images import batch_geometry as geometry
from nearsight.images import batch_rand_augment as rand_augment
from nearsight.images.augmentation import IMAGENET_MEAN, IMAGENET_STD, Augment, Interpolation
from nearsight.images.normalization import Normalize
from nearsight.images.transforms import resized_shape
from nearsight.randomness import hash32, to_unit

_CROP_DRAWS = 2 * geometry.CROP_TRIES + 2
_ERASE_DRAWS = 2 * geometry.ERASE_TRIES + 3
_RAND_DRAWS = 4  # operation, whether, magnitude, sign


def _may_ask(tensor: Tensor) -> bool:
    """Whether control flow may depend on values: on an eager CPU that saves work, elsewhere it would stall."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


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
        pixels = images.to(torch.float32)
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
            return torch.where(flip[:, None, None, None], pixels.flip(-1), pixels)
        if augment.crop == "pad":
            if min(height, width) + 2 * augment.padding < augment.size:
                raise ValueError(f"images of {height} × {width} are too small to crop {augment.size} × {augment.size}")
            return geometry.pad_crop(pixels, unit[:, :2], flip, augment.padding, augment.size)
        boxes = geometry.crop_boxes(unit, augment, height, width)
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
        if _may_ask(pixels):
            return rand_augment.apply_sparse(pixels, choice, self.fill, augment.interpolation)
        return rand_augment.apply_dense(pixels, choice, self.fill, augment.interpolation)

    def _jitter(self, pixels: Tensor, unit: Tensor) -> Tensor:
        """Brightness, contrast, saturation, in this order (torchvision draws the order too)."""
        factor = 1 + self.augment.jitter * (2 * unit - 1)
        brightness, contrast, saturation = (value[:, None, None, None] for value in factor.unbind(1))
        pixels = color.blend(torch.zeros_like(pixels), pixels, brightness)
        mean = torch.floor(color.luma(pixels).mean(dim=(1, 2, 3), keepdim=True) + 0.5)
        return color.saturate(color.blend(mean, pixels, contrast), saturation)

    def _erase(self, normalized: Tensor, keys: Tensor, unit: Tensor) -> Tensor:
        height, width = normalized.shape[-2:]
        boxes = geometry.erase_boxes(unit, self.augment, height, width)
        gone = geometry.inside_boxes(boxes, height, width)
        if self.augment.erase_mode == "zero":
            return torch.where(gone, 0.0, normalized)
        if not _may_ask(normalized):
            return torch.where(gone, geometry.pixel_noise(keys, normalized.shape[1:]), normalized)
        rows = (boxes[:, 2] > 0).nonzero().squeeze(1)
        normalized[rows] = torch.where(
            gone[rows], geometry.pixel_noise(keys[rows], normalized.shape[1:]), normalized[rows]
        )
        return normalized


class BatchEval(nn.Module):
    """uint8 [B, 3, H, W] → normalised float32 [B, 3, size, size]: resize, centre crop, normalise.

    Images that already have the right size (from EvalTransform, or resident at that size with crop_ratio 1) are only
    normalised.
    """

    def __init__(
        self,
        size: int,
        *,
        crop_ratio: float = 1.0,
        interpolation: Interpolation = "bicubic",
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        if not 0 < crop_ratio <= 1:
            raise ValueError(f"crop_ratio must be in (0, 1], got {crop_ratio}")
        self.size, self.crop_ratio, self.interpolation = size, crop_ratio, interpolation
        self.normalize = Normalize(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.to(torch.float32)
        height, width = pixels.shape[-2:]
        if (height, width) != (self.size, self.size) or self.crop_ratio != 1:
            full = resized_shape(height, width, self.size, self.crop_ratio)
            if full != (height, width):
                pixels = F.interpolate(pixels, full, mode=self.interpolation, antialias=True, align_corners=False)
                pixels = torch.round(pixels).clamp(0, 255)
            top, left = (round((side - self.size) / 2) for side in full)
            pixels = pixels[..., top : top + self.size, left : left + self.size]
        return self.normalize(pixels)
