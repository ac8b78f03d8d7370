"""Random weights and random depth as timm has them, bit for bit. timm itself takes longer to import than torch."""

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def trunc_normal_(weights: Tensor, *, std: float) -> Tensor:
    """Fill `weights` with a normal distribution of mean 0, cut off at ±2 whatever `std` is; returns them.

    Through the inverse of the distribution, as all weights here have always been drawn. `nn.init.trunc_normal_` draws
    other numbers from the same seed.
    """
    share = math.erf(2.0 / std / math.sqrt(2.0))
    return weights.uniform_(-share, share).erfinv_().mul_(std * math.sqrt(2.0)).clamp_(-2.0, 2.0)


class DropPath(nn.Module):
    """In training each sample's values become zero with a probability, and grow to the same mean where they stay."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        keep = 1 - self.drop_prob
        kept = x.new_empty((x.shape[0], *(1 for _ in x.shape[1:]))).bernoulli_(keep)
        return x * kept.div_(keep)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob:.3f}"
