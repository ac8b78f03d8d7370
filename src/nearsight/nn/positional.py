"""Attention over a grid of patches with a positional term: PSA (ConViT Eq. 4) and GPSA (Eq. 6–7)."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional as equations
from .. import kernels
from ..geometry import Grid, head_centers
from .checks import (
    require_backend,
    require_choice,
    require_divisible,
    require_finite,
    require_positive,
    require_tokens,
)
from .random import trunc_normal_
from .transformer import MultiHead, initialise

Init = Literal["convolutional", "random"]
STRONGEST = 1e4


class GridAttention(MultiHead):
    """What PSA and GPSA share: projections, v_pos, and the convolutional initialisation of Eq. 5."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        out_dim: int | None = None,
        head_dim: int | None = None,
        qkv_bias: bool = False,
        proj_drop: float = 0.0,
        locality_strength: float = 1.0,
        init: Init = "convolutional",
        centers_on_patches: bool = False,
    ) -> None:
        super().__init__()
        require_choice("init", init, get_args(Init))
        require_finite(locality_strength=locality_strength)
        if not 0 < locality_strength <= STRONGEST:
            raise ValueError(
                f"locality_strength must be positive and at most {STRONGEST:g}, where a head sees one patch, not "
                f"{locality_strength}; use init='random' for none"
            )
        self.dim, self.num_heads = dim, num_heads
        self.head_dim = require_divisible(dim, num_heads) if head_dim is None else head_dim
        require_positive(head_dim=self.head_dim)
        self.locality_strength, self.init, self.centers_on_patches = locality_strength, init, centers_on_patches
        inner = num_heads * self.head_dim
        self.qk = nn.Linear(dim, 2 * inner, bias=qkv_bias)
        self.v = nn.Linear(dim, inner, bias=qkv_bias)
        self.proj = nn.Linear(inner, dim if out_dim is None else out_dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.v_pos = nn.Parameter(torch.empty(num_heads, 3))
        # The softmax cancels this bias. The released weights carry it, so counts and round trips stay exact.
        self.pos_bias = nn.Parameter(torch.empty(num_heads))
        GridAttention.reset_parameters(self)  # what a subclass adds is not there yet

    def reset_parameters(self) -> None:
        initialise(self.qk, self.v, self.proj)
        nn.init.zeros_(self.pos_bias)
        if self.init == "random":
            trunc_normal_(self.v_pos, std=0.02)
            return
        centers = head_centers(self.num_heads, on_patches=self.centers_on_patches)
        rows, cols = self.v.weight.shape
        with torch.no_grad():
            # W_val := I, repeated where there are more rows than columns.
            self.v.weight.copy_(torch.arange(rows)[:, None] % cols == torch.arange(cols))
            self.v_pos.copy_(equations.convolutional_v_pos(centers, self.locality_strength))

    def project(self, x: Tensor) -> Tensor:
        return torch.cat((self.qk(x), self.v(x)), dim=-1).unflatten(-1, (3, self.num_heads, self.head_dim))

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, head_dim={self.head_dim}, locality_strength={self.locality_strength}, "
            f"init={self.init!r}"
        )


class PositionalSelfAttention(GridAttention):
    """PSA (Eq. 4): softmax(QKᵀ + v_posᵀ r). Content and position compete inside one softmax."""

    def forward(self, x: Tensor, grid_size: Grid, need_weights: bool = False):
        """x [B, H·W, dim] → y, or (y, weights [B, heads, N, N])."""
        require_tokens(x, self.dim, grid_size)
        query, key, value = self.query_key_value(x)
        if need_weights:
            weights = equations.positional_self_attention_weights(query, key, self.v_pos, grid_size=grid_size)
            return self.join(weights @ value), weights
        logits = equations.positional_logits(self.v_pos, grid_size) + self.pos_bias[:, None, None]
        return self.join(F.scaled_dot_product_attention(query, key, value, attn_mask=logits.to(query.dtype)[None]))


class GatedPositionalSelfAttention(GridAttention):
    """GPSA (Eq. 6–7): (1 − σ(λ)) softmax(QKᵀ) + σ(λ) softmax(v_posᵀ r), one gate λ for each head.

    Initialised as a convolution (Eq. 5), which training may leave: `gate` is λ, `gate_value` is σ(λ). The forward
    pass never builds the N×N map: both halves are distributions, so it is one fused content attention plus a separable
    positional filter, exactly (see `kernels`).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        gate: float = 1.0,
        train_gate: bool = True,
        backend: str | None = None,
        **shared: Any,
    ) -> None:
        """``shared`` are the arguments of PSA."""
        super().__init__(dim, num_heads, **shared)
        require_backend(kernels.gpsa.BACKENDS, backend)
        self.initial_gate, self.backend = gate, backend
        self.gate = nn.Parameter(torch.full((num_heads,), float(gate)), requires_grad=train_gate)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.gate, self.initial_gate)

    @property
    def gate_value(self) -> Tensor:
        """σ(λ): the share of attention paid to position, one number for each head."""
        return self.gate.sigmoid()

    def forward(self, x: Tensor, grid_size: Grid, need_weights: bool = False):
        """x [B, H·W, dim] → y, or (y, weights [B, heads, N, N])."""
        require_tokens(x, self.dim, grid_size)
        if need_weights:
            query, key, value = self.query_key_value(x)
            weights = equations.gated_positional_attention_weights(
                query, key, self.v_pos, self.gate, grid_size=grid_size
            )
            return self.join(weights @ value), weights
        heads = kernels.gated_positional_attention(
            self.project(x), self.v_pos, self.pos_bias, self.gate, grid_size=grid_size, backend=self.backend
        )
        return self.join(heads)

    @classmethod
    def from_convolution(
        cls, conv: nn.Conv2d, *, locality_strength: float = 50.0, gate: float = 10.0
    ) -> "GatedPositionalSelfAttention":
        """The layer that computes `conv` (square, stride 1, replicate padding) with k² heads, one for each offset.

        `gate` 10 leaves content 1 − σ(10) = 4.5e-5 of the attention: the output differs from the convolution's by that
        share, and gate, queries and keys can learn. `gate` 40 is the convolution to float32's precision, for good:
        σ(40) is 1 there and those gradients are exactly zero.
        """
        shape = {"stride": conv.stride, "dilation": conv.dilation, "groups": conv.groups}
        if shape != {"stride": (1, 1), "dilation": (1, 1), "groups": 1}:
            raise ValueError(f"only a convolution of stride 1, dilation 1 and one group becomes heads, not {shape}")
        # A number of padding pixels keeps the size for odd sides only; a 1×1 has no edge to pad.
        odd = all(side % 2 for side in conv.kernel_size)
        kept = ("same", tuple(side // 2 for side in conv.kernel_size)) if odd else ("same",)
        edged = conv.padding_mode == "replicate" or conv.kernel_size == (1, 1)
        if not edged or conv.padding not in kept:
            raise ValueError(
                f"attention at the image's edge is replicate padding that keeps the size; got padding={conv.padding}, "
                f"padding_mode={conv.padding_mode!r}: use padding='same', padding_mode='replicate'"
            )
        weight = conv.weight.detach()
        parts = equations.attention_from_convolution(weight, locality_strength=locality_strength)
        layer = cls(
            conv.in_channels,
            parts.v_pos.shape[0],
            head_dim=conv.in_channels,
            out_dim=conv.out_channels,
            locality_strength=locality_strength,
            gate=gate,
            centers_on_patches=True,
        ).to(weight)
        with torch.no_grad():
            layer.v_pos.copy_(parts.v_pos)
            layer.v.weight.copy_(parts.value_weight)
            layer.proj.weight.copy_(parts.out_weight)
            if conv.bias is None:
                layer.proj.bias.zero_()
            else:
                layer.proj.bias.copy_(conv.bias)
        return layer
