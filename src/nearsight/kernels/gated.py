"""Gated positional attention (ConViT's Eq. 6–7), split so that no B×n×N×N map is ever made.

Both maps are distributions over keys and the gate mixes them after their softmaxes, hence

    GPSA = (1 − σ(λ)) · softmax(scale · q kᵀ) v + σ(λ) · P v,        P = softmax(v_posᵀ r_δ)

where P has no batch axis. Its logit a‖δ‖² + b·δ_row + c·δ_col has no cross term, so on any H×W grid P = P_row ⊗ P_col.
On the GPU one kernel does both halves of rows of up to 256 keys ("joint"). Elsewhere the content half is fused
attention and the backends differ in how they apply P: as one dense N×N product (small grids), as two one-dimensional
ones (large grids, O(N(H + W))), or fused with the mixing on the GPU.

Query, key and value come packed, as one projection makes them, so that their gradients can go back to it as one tensor
without a copy. Shapes: B batch, n heads, N = H·W positions in row-major order, d channels of a head.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..functional import attention as reference
from ..functional.attention import positional_axis_weights
from ..geometry import Grid
from .dispatch import HAS_TRITON, Backend, Verdict, choose, no_triton_here, nothing_against, verdicts
from .gated_layout import heads_outside

LONGEST_ROW = 256  # keys of a 16×16 grid: the joint kernel holds a row of them in registers
LARGEST_HEAD = 64  # channels that the joint kernel's tiles have room for
LARGEST_FUSED = 8192  # positions whose N×N weights of 32 heads have 32-bit places
LARGEST_DENSE = 1024  # positions of a 32×32 grid: beyond, two one-dimensional products are cheaper


def _dense_weights(v_pos: Tensor, pos_bias: Tensor, gate_value: Tensor, grid_size: Grid) -> Tensor:
    """σ(λ) · P_row ⊗ P_col as [n, N, N]."""
    by_row, by_col = positional_axis_weights(v_pos, grid_size, pos_bias)
    by_row = gate_value[:, None, None] * by_row
    return (by_row[:, :, None, :, None] * by_col[:, None, :, None, :]).flatten(3, 4).flatten(1, 2)


def _weights(
    v_pos: Tensor, pos_bias: Tensor, gate: Tensor, grid_size: Grid, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """σ(λ) · P in `dtype` and 1 − σ(λ), by Triton."""
    return gated_positions.gated_weights(v_pos, pos_bias, gate, *grid_size, dtype, triton_launch.EDITION)


def _joint(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    weights, share = _weights(v_pos, pos_bias, gate, grid_size, qkv.dtype)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (qkv, weights, share))
    scale = qkv.shape[-1] ** -0.5 if scale is None else float(scale)
    return gated_joint.attend_gated(qkv, weights, share, scale, keep)[0]


def _fused(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    weights, share = _weights(v_pos, pos_bias, gate, grid_size, qkv.dtype)
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return gated_triton.mix_positions(content, value, weights, share)


def _dense(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    gate_value = gate.sigmoid()
    weights = _dense_weights(v_pos, pos_bias, gate_value, grid_size).to(qkv.dtype)
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    position = torch.einsum("nij,bnjd->bnid", weights, value)
    return torch.addcmul(position, (1 - gate_value)[:, None, None].to(value.dtype), content)


def _separable(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    gate_value = gate.sigmoid()[:, None, None]
    by_row, by_col = positional_axis_weights(v_pos, grid_size, pos_bias)
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    rows = value.unflatten(2, grid_size).flatten(3)  # [B, n, H, W·d], a copy: neither product makes one then
    rows = (gate_value * by_row).to(value.dtype) @ rows
    position = by_col[:, None].to(value.dtype) @ rows.unflatten(3, (grid_size[1], value.shape[-1]))
    return torch.addcmul(position.flatten(2, 3), (1 - gate_value).to(value.dtype), content)


def _fused_refusal(qkv: Tensor, *parameters: Tensor, **options) -> str | None:
    refusal = no_triton_here(qkv)
    if refusal is not None:
        return refusal
    if qkv.dtype not in (torch.float16, torch.bfloat16):
        return f"values are {qkv.dtype}; float16 or bfloat16 is needed"
    if qkv.shape[-1] > 128:
        return f"head dimension {qkv.shape[-1]} exceeds 128"
    if qkv.numel() == 0:
        return "there is nothing to compute"
    if qkv.shape[1] > LARGEST_FUSED:
        return f"{qkv.shape[1]} positions make N×N weights of 32-bit places too large; {LARGEST_FUSED} do not"
    return None


def _joint_refusal(qkv: Tensor, *parameters: Tensor, **options) -> str | None:
    refusal = _fused_refusal(qkv)
    if refusal is not None:
        return refusal
    if qkv.shape[-1] > LARGEST_HEAD:
        return f"head dimension {qkv.shape[-1]} exceeds {LARGEST_HEAD}"
    if qkv.shape[1] > LONGEST_ROW:
        return f"a row of {qkv.shape[1]} keys is not held at once; {LONGEST_ROW} are"
    scale = options.get("scale")
    if scale is not None and scale <= 0:
        return f"scale {scale} is not positive"
    return None


def _dense_reservation(qkv: Tensor, *parameters: Tensor, **options) -> str | None:
    if qkv.shape[1] > LARGEST_DENSE:
        return f"{qkv.shape[1]} positions make the N×N weights large; above {LARGEST_DENSE} they are kept separable"
    if not qkv.is_cuda:
        return f"on {qkv.device.type} two one-dimensional products are less work and faster"
    return None


if HAS_TRITON:
    from . import gated_joint, gated_positions, gated_triton, triton_launch

BACKENDS = [
    Backend("joint", _joint_refusal, _joint),
    Backend("fused", _fused_refusal, _fused, _dense_reservation),
    Backend("dense", nothing_against, _dense, _dense_reservation),
    Backend("separable", nothing_against, _separable),
]


def _check(qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, grid_size: Grid) -> None:
    """Kernels trust these shapes: what they do not fit would be read from other memory."""
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [batch, positions, 3, heads, channels], not of shape {tuple(qkv.shape)}")
    _, positions, _, num_heads, _ = qkv.shape
    if isinstance(grid_size, int):
        raise ValueError(f"grid_size is (rows, cols) of patches, not {grid_size}")
    if grid_size[0] * grid_size[1] != positions:
        raise ValueError(f"grid_size={tuple(grid_size)} does not have the {positions} positions of qkv")
    shapes = [tuple(x.shape) for x in (v_pos, pos_bias, gate)]
    if shapes != [(num_heads, 3), (num_heads,), (num_heads,)]:
        raise ValueError(
            f"for {num_heads} heads v_pos is [{num_heads}, 3], pos_bias and gate are [{num_heads}]; got {shapes}"
        )


def gated_positional_attention(
    qkv: Tensor,
    v_pos: Tensor,
    pos_bias: Tensor,
    gate: Tensor,
    *,
    grid_size: Grid,
    scale: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """qkv [B,N,3,n,d], v_pos [n,3] over (‖δ‖², δ_row, δ_col), pos_bias [n], gate λ [n] → [B,n,N,d].

    `scale` multiplies the content logits; None means 1/√d. On the meta device, where only arithmetic is counted, the
    equation stands as written whatever the backend.
    """
    _check(qkv, v_pos, pos_bias, gate, grid_size)
    if qkv.is_meta:
        query, key, value = heads_outside(qkv)
        return reference.gated_positional_attention(query, key, value, v_pos, gate, grid_size=grid_size, scale=scale)
    arguments = (qkv, v_pos, pos_bias, gate)
    chosen = choose(BACKENDS, backend, *arguments, grid_size=grid_size, scale=scale)
    return chosen.run(*arguments, grid_size=grid_size, scale=scale)


def explain_gated_positional_attention(
    qkv: Tensor,
    v_pos: Tensor,
    pos_bias: Tensor,
    gate: Tensor,
    *,
    grid_size: Grid,
    scale: float | None = None,
) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot."""
    return verdicts(BACKENDS, qkv, v_pos, pos_bias, gate, grid_size=grid_size, scale=scale)
