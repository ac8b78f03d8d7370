"""GPSA's positional weights P on the GPU, which `joint` and `fused` share: made in one launch, and their gradients."""

import torch
from torch import Tensor

from ..sizes import PROGRAMS_WANTED, ceil_div, next_power_of_2
from ..triton_launch import EDITION, Operator, wrap_triton
from .layout import Positions, known_sizes, places, stride_unit
from .positions_kernels import _weight_gradient, make_weights, sum_partials, weights_backward

ALIGNMENT = 16
ELEMENTS = 2048  # of a program's tile
SIDE, GRADIENT_WARPS, GRADIENT_STAGES = 128, 4, 3


def weights_and_share(positions: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """σ(λ) · P in `dtype` and 1 − σ(λ)."""
    v_pos, pos_bias, gate, grid_size = positions
    return gated_weights(v_pos, pos_bias, gate, *grid_size, dtype, EDITION)


def _tiling(tokens: int, cols: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and the number of tiles."""
    width = next_power_of_2(cols)
    rows = max(1, ELEMENTS // width)
    return rows, width, ceil_div(tokens, rows)


@Operator
def gated_weights(
    v_pos: Tensor, pos_bias: Tensor, gate: Tensor, height: int, width: int, dtype: torch.dtype, edition: str
) -> tuple[Tensor, Tensor]:
    """σ(λ) · softmax(v_posᵀ r) [n, N, M] with columns of zeros up to M, a multiple of 16, and 1 − σ(λ) [n] in float32.

    `pos_bias` is cancelled by the softmax; it is here so that it belongs to the graph, with a gradient of zeros.
    `edition` is that of `triton_launch`, whose place in a compiled graph this is.
    """
    weights, share = _outputs(v_pos, height, width, dtype)
    tokens, cols = weights.shape[1:]
    rows, padded, programs = _tiling(tokens, cols)
    with torch.cuda.device_of(v_pos):
        wrap_triton(make_weights)[(programs, len(v_pos))](
            v_pos.contiguous(), gate.contiguous(), weights, share, tokens, cols, width, ROWS=rows, COLS=padded
        )
    return weights, share


def _outputs(v_pos: Tensor, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Empty. Under torch.compile symbolic sizes become known here: inductor takes padding of unknown rows badly."""
    heads, tokens = int(v_pos.shape[0]), int(height) * int(width)
    cols = tokens + -tokens % ALIGNMENT
    return v_pos.new_empty(heads, tokens, cols, dtype=dtype), v_pos.new_empty(heads, dtype=torch.float32)


@gated_weights.register_fake
def _(v_pos, pos_bias, gate, height, width, dtype, edition):
    return _outputs(v_pos, height, width, dtype)


@Operator
def gated_weights_backward(
    grad_weights: Tensor, grad_share: Tensor, v_pos: Tensor, gate: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Gradients of v_pos and the gate λ, in float32."""
    heads, tokens, cols = grad_weights.shape
    rows, padded, programs = _tiling(tokens, cols)
    partial = v_pos.new_empty(heads, programs, 4, dtype=torch.float32)
    grad_v_pos, grad_gate = v_pos.new_empty(heads, 3, dtype=torch.float32), gate.new_empty(heads, dtype=torch.float32)
    gate = gate.contiguous()
    with torch.cuda.device_of(v_pos):
        wrap_triton(weights_backward)[(programs, heads)](
            grad_weights.contiguous(), v_pos.contiguous(), gate, partial, tokens, cols, width, ROWS=rows, COLS=padded
        )
        wrap_triton(sum_partials)[(heads,)](
            partial, gate, grad_share.contiguous(), grad_v_pos, grad_gate, programs,
            PROGRAMS=next_power_of_2(programs),
        )  # fmt: skip
    return grad_v_pos, grad_gate


@gated_weights_backward.register_fake
def _(grad_weights, grad_share, v_pos, gate, width):
    return v_pos.new_empty(v_pos.shape, dtype=torch.float32), gate.new_empty(gate.shape, dtype=torch.float32)


def _setup_context(ctx, inputs, output):
    v_pos, pos_bias, gate, _, ctx.width, *_ = inputs
    ctx.save_for_backward(v_pos, pos_bias, gate)


def _backward(ctx, grad_weights, grad_share):
    v_pos, pos_bias, gate = ctx.saved_tensors
    grads = gated_weights_backward(grad_weights, grad_share, v_pos, gate, ctx.width)
    return grads[0].to(v_pos.dtype), torch.zeros_like(pos_bias), grads[1].to(gate.dtype), None, None, None, None


gated_weights.register_autograd(_backward, setup_context=_setup_context)


def weight_gradient(gradient: Tensor, value: Tensor, weights: Tensor) -> Tensor:
    """∂weights = Σ_b ∂out · vᵀ in float32, as large as `weights`; channels of `gradient` and `value` are dense."""
    batch, num_heads, tokens, head_dim = known_sizes(value)
    tiles = ceil_div(tokens, SIDE)
    shares = max(1, min(batch, PROGRAMS_WANTED // (num_heads * tiles * tiles)))
    images = ceil_div(batch, shares)
    shares = ceil_div(batch, images)
    weight_shares = value.new_empty(shares, *weights.shape, dtype=torch.float32)
    unit = stride_unit(gradient, value)
    wrap_triton(_weight_gradient)[(shares * num_heads * tiles * tiles,)](
        gradient, value, weight_shares, *places(gradient, unit), *places(value, unit),
        batch, num_heads, tokens, weights.shape[2], tiles, images,
        UNIT=unit, HEAD_DIM=head_dim, D=max(16, next_power_of_2(head_dim)), SIDE=SIDE,
        num_warps=GRADIENT_WARPS, num_stages=GRADIENT_STAGES,
    )  # fmt: skip
    return weight_shares.sum(dim=0)
