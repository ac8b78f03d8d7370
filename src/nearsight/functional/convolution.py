"""Attention as a convolution and back (Cordonnier et al. 2020; ConViT Eq. 5).

k² heads, each fixed on one offset of the kernel, make a k×k convolution: head h carries the input unchanged
(W_val = I) to its offset's query, and the output projection's slice for h is the kernel's weight at that offset.
At the image's edge the attention of a head that would look outside falls on the nearest patch inside, row by row and
column by column: the convolution has **replicate** padding.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry import head_centers, window_offsets
from .attention import convolutional_v_pos


class AttentionParts(NamedTuple):
    """The weights of an attention layer that computes a convolution."""

    v_pos: Tensor  # [k², 3]
    value_weight: Tensor  # [k²·in, in]: k² identities
    out_weight: Tensor  # [out, k²·in]


def attention_from_convolution(weight: Tensor, *, locality_strength: float = 50.0) -> AttentionParts:
    """A convolution's weight [out, in, k, k] as k² heads of `in` channels; exact as α → ∞ (2e-22 at α = 50)."""
    out_channels, in_channels, rows, cols = weight.shape
    if rows != cols:
        raise ValueError(f"only square kernels become attention heads, not {rows}x{cols}; pad the kernel with zeros")
    centers = head_centers(rows * cols, on_patches=True).to(weight)
    # The row runs fastest over heads, so the kernel's column axis comes before its row axis here.
    per_head = weight.permute(0, 3, 2, 1).reshape(out_channels, rows * cols * in_channels)
    identity = torch.eye(in_channels, dtype=weight.dtype, device=weight.device)
    return AttentionParts(
        v_pos=convolutional_v_pos(centers, locality_strength),
        value_weight=identity.repeat(rows * cols, 1),
        out_weight=per_head,
    )


def convolution_from_attention(
    v_pos: Tensor, value_weight: Tensor, out_weight: Tensor, *, kernel_size: int
) -> tuple[Tensor, Tensor]:
    """The convolution [out, in, k, k] that a purely positional layer performs away from the edges, and what it misses.

    Each head's positional kernel on an unbounded grid is a product of two discrete Gaussians; the part of it outside
    the k×k window is cut off. The second result is that missing mass for each head, in [0, 1): zero when the
    convolution is exact.
    """
    num_heads = v_pos.shape[0]
    square, row, col = v_pos.unbind(-1)
    if bool((square >= 0).any()):
        raise ValueError(
            f"a head with v_pos ‖δ‖² component >= 0 (found {square.max().item():.3g}) spreads without bound on an "
            "infinite grid and is no convolution"
        )
    # Wide enough for every head: its centre, plus ten standard deviations of exp(square·δ²), plus the window.
    center = (torch.stack((row, col)) / (2 * square)).abs().max()
    reach = int(torch.ceil(center + 10 * (-2 * square).rsqrt().max()).item()) + kernel_size
    offset = torch.arange(-reach, reach + 1, device=v_pos.device, dtype=v_pos.dtype)
    window = window_offsets(kernel_size, device=v_pos.device) + reach
    axes = []
    for linear in (row, col):
        axis = (square[:, None] * offset.square() + linear[:, None] * offset).softmax(dim=-1)
        axes.append(axis[:, window])
    kernel = torch.einsum("hr,hc->hrc", axes[0], axes[1])
    head_dim = value_weight.shape[0] // num_heads
    values = value_weight.reshape(num_heads, head_dim, -1)
    outs = out_weight.reshape(out_weight.shape[0], num_heads, head_dim)
    weight = torch.einsum("ohd,hdi,hrc->oirc", outs, values, kernel)
    return weight, 1 - kernel.sum(dim=(-2, -1))
