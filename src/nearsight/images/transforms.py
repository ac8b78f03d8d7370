"""What an image goes through on its way to a model: the short side resized, the centre cut out, pixels normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from nearsight.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD


def normalise(images: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> Tensor:
    """Pixels 0..255 [B, 3, H, W] → float (x − 255 mean) / (255 std)."""
    # Numbers, not tensors: nothing is copied to the device, so a captured step can hold it.
    channels = zip(images.unbind(1), mean, std, strict=True)
    return torch.stack([(channel.float() - 255 * m) / (255 * s) for channel, m, s in channels], dim=1)


class Normalize(nn.Module):
    """The same as one multiplication and one addition, with the last bit rounded differently: float x · scale + shift.

    For the end of a chain of operations on a whole batch, where it is fused with them.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        mean_, std_ = (torch.tensor(value, dtype=torch.float64).view(1, 3, 1, 1) for value in (mean, std))
        self.register_buffer("scale", (1 / (255 * std_)).float(), persistent=False)
        self.register_buffer("shift", (-mean_ / std_).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images * self.scale).add_(self.shift)


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

    def __init__(self, size: int, *, crop_ratio: float = 0.875, interpolation: str = "bicubic") -> None:
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
        method = Image.Resampling[self.interpolation.upper()]
        resized = Image.fromarray(image).resize((self.size, self.size), method, box=window)
        return np.asarray(resized)


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
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        interpolation: str = "bicubic",
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
