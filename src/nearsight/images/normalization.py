"""Pixels to what models expect: centred and scaled by channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nearsight.images.augmentation import IMAGENET_MEAN, IMAGENET_STD

FILL = (124, 116, 104)  # the mean colour in 0..255, which normalising turns into about zero


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
        return images * self.scale + self.shift
