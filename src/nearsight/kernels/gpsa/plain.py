"""GPSA in plain operators, which run anywhere: the backends `dense` and `separable`.

The content half is torch's fused attention; they differ in how they apply the positional weights P, as one dense N×N
product (small grids) or as two one-dimensional ones (large grids, O(N(H + W))).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional.attention import positional_axis_weights
from ..compat import exporting
from ..dispatch import Backend, nothing_against
from ..tokens import outer_product
from .layout import Positions, heads_outside

LARGEST_DENSE = 1024  # positions of a 32×32 grid: beyond, two one-dimensional products are cheaper


def gated_axis_weights(positions: Positions) -> tuple[Tensor, Tensor]:
    """σ(λ) · P_row [n, H, H] and P_col [n, W, W]."""
    by_row, by_col = positional_axis_weights(positions.v_pos, positions.grid_size, positions.pos_bias)
    return positions.gate.sigmoid()[:, None, None] * by_row, by_col


def dense(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    gate_value, weights = positions.gate.sigmoid(), outer_product(*gated_axis_weights(positions))
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    position = torch.einsum("nij,bnjd->bnid", weights.to(qkv.dtype), value)
    return torch.addcmul(position, (1 - gate_value)[:, None, None].to(value.dtype), content)


def separable(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    gate_value = positions.gate.sigmoid()[:, None, None]
    by_row, by_col = gated_axis_weights(positions)
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    rows = value.unflatten(2, positions.grid_size).flatten(3)  # [B, n, H, W·d], a copy: neither product makes one then
    rows = by_row.to(value.dtype) @ rows
    position = by_col[:, None].to(value.dtype) @ rows.unflatten(3, (positions.grid_size[1], value.shape[-1]))
    return torch.addcmul(position.flatten(2, 3), (1 - gate_value).to(value.dtype), content)


def dense_reservation(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    if not qkv.is_cuda:
        return f"on {qkv.device.type} two one-dimensional products are less work and faster"
    if exporting():
        return "an exported graph is for any number of positions"
    if qkv.shape[1] > LARGEST_DENSE:
        return f"{qkv.shape[1]} positions make the N×N weights large; above {LARGEST_DENSE} they are kept separable"
    return None


DENSE = Backend("dense", nothing_against, dense, dense_reservation)
SEPARABLE = Backend("separable", nothing_against, separable)
