"""SASA's attention stem: attention inside non-overlapping blocks of the image."""

from collections.abc import Callable
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional as equations
from ..geometry import window_padding
from .checks import require_choice, require_divisible, require_images, require_positive

Values = Literal["spatial", "convolution", "plain"]


class AttentionStem2d(nn.Module):
    """Every pixel attends to the pixels of its own block: images [B, in, H, W] → [B, out, H, W], block | H and W.

    `values` (Table 7): "spatial" mixes `num_mixtures` value matrices by where in the block a pixel lies, "convolution"
    takes values from a block-sized convolution, "plain" from a 1×1. The logits are qᵀk alone. Width and number of
    mixtures are not stated by the paper; 64 channels and 4 mixtures are the usual reading, and a 4×4 convolution is
    what Table 7's FLOPS imply. Batch norm and pooling belong to the network.
    """

    linear: ClassVar[Callable[..., Tensor]] = staticmethod(F.linear)

    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 64,
        *,
        block_size: int = 4,
        num_heads: int = 4,
        num_mixtures: int = 4,
        values: Values = "spatial",
    ) -> None:
        super().__init__()
        require_choice("values", values, get_args(Values))
        require_positive(in_channels=in_channels, block_size=block_size, num_mixtures=num_mixtures)
        self.head_dim = require_divisible(out_channels, num_heads, "out_channels")
        self.in_channels, self.out_channels, self.num_heads = in_channels, out_channels, num_heads
        self.block_size, self.values = block_size, values
        self.query_key = nn.Parameter(torch.empty(2, out_channels, in_channels))
        if values == "spatial":
            self.value_weights = nn.Parameter(torch.empty(num_mixtures, out_channels, in_channels))
            self.row_embedding = nn.Parameter(torch.empty(block_size, self.head_dim))
            self.col_embedding = nn.Parameter(torch.empty(block_size, self.head_dim))
            self.mixture_embedding = nn.Parameter(torch.empty(num_mixtures, self.head_dim))
        else:
            extent = block_size if values == "convolution" else 1
            self.value_weights = nn.Parameter(torch.empty(out_channels, in_channels, extent, extent))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.query_key, std=self.in_channels**-0.5)
        with torch.no_grad():
            self.query_key[0].mul_(self.head_dim**-0.5)
        if self.values == "spatial":
            nn.init.normal_(self.value_weights, std=self.in_channels**-0.5)
            for embedding in (self.row_embedding, self.col_embedding, self.mixture_embedding):
                nn.init.normal_(embedding)
        else:
            nn.init.kaiming_normal_(self.value_weights, nonlinearity="linear")

    def forward(self, x: Tensor, need_weights: bool = False):
        """x → y, or (y, weights [B, H/block, W/block, heads, block², block²])."""
        self.check(x)
        pixels = x.permute(0, 2, 3, 1)
        query, key = self.project(pixels).unflatten(-1, (2, self.num_heads, -1)).unbind(3)
        value = self._values(x, pixels).unflatten(-1, (self.num_heads, -1))
        weights = equations.block_attention_weights(query, key, self.block_size)
        y = equations.apply_block_weights(weights, value, self.block_size).flatten(3).permute(0, 3, 1, 2)
        return (y, weights) if need_weights else y

    def check(self, x: Tensor) -> None:
        """ValueError for images that are not whole blocks, or not images of this layer."""
        require_images(x, self.in_channels, self.query_key.dtype)
        if x.shape[2] % self.block_size or x.shape[3] % self.block_size:
            raise ValueError(
                f"image size {x.shape[2]}x{x.shape[3]} is not divisible by the stem's block of {self.block_size}; "
                "resize or pad the images"
            )

    def project(self, pixels: Tensor) -> Tensor:
        """[B, H, W, in] → query and key side by side, [B, H, W, 2·out]."""
        return self.linear(pixels, self.query_key.flatten(0, 1))

    def value_mixture(self) -> Tensor:
        """How much each value matrix counts at each place of a block, [block, block, mixtures]; for spatial values."""
        return equations.value_mixture(self.row_embedding, self.col_embedding, self.mixture_embedding)

    def _values(self, x: Tensor, pixels: Tensor) -> Tensor:
        if self.values == "spatial":
            return equations.spatially_aware_values(pixels, self.value_weights, self.value_mixture())
        before, after = window_padding(self.value_weights.shape[-1])
        return F.conv2d(F.pad(x, (before, after, before, after)), self.value_weights).permute(0, 2, 3, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, block_size={self.block_size}, num_heads={self.num_heads}, "
            f"values={self.values!r}"
        )
