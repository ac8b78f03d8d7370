"""The batched path: augmentation of whole batches on any device, a pure function of images and sample keys."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .augment_config import IMAGENET_MEAN, IMAGENET_STD, Augment, Interpolation


class BatchAugment(nn.Module):
    """uint8 [B, 3, H, W] and keys int64 [B] → normalised float32 [B, 3, size, size].

    `done` says what a worker has already carried out: nothing, the crop, or everything but normalising and erasing.
    """

    def __init__(self, augment: Augment, *, done: Literal["nothing", "crop", "all"] = "nothing") -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        raise NotImplementedError


class BatchEval(nn.Module):
    """uint8 [B, 3, H, W] → normalised float32 [B, 3, size, size]: resize, centre crop, normalise."""

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
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError
