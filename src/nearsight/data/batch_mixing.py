"""Mixup and cutmix of whole batches on any device, a pure function of (seed, step, position in the global batch)."""

from __future__ import annotations

from torch import Tensor, nn

from .augment_config import Mixing


class BatchMix(nn.Module):
    """Float images [B, 3, H, W] and labels int64 [B] → mixed images and soft targets float32 [B, num_classes].

    `first` is the position of the batch's first sample in the global batch; it and B must be multiples of the group.
    """

    def __init__(self, mixing: Mixing, num_classes: int) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(
        self, images: Tensor, labels: Tensor, seed: int | Tensor, step: int | Tensor, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError
