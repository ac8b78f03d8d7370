"""GPSA's positional half on the GPU: launches of the Triton kernels, as operators."""

import torch
from torch import Tensor

from ._gated_triton_kernels import _mix, _weight_gradient
from .gated_layout import dense_channels, known_sizes, places, positions_outside, stride_unit
from .sizes import ceil_div, next_power_of_2
from .triton_launch import Operator, wrap_triton

ROWS, DEPTH, MIX_WARPS = 128, 32, 4
SIDE, GRADIENT_WARPS = 128, 4
STAGES = 3
PROGRAMS_WANTED = 528  # four for each multiprocessor of a large device


def _launch_mix(
    weights: Tensor, value: Tensor, content: Tensor, scale: Tensor, output: Tensor, other: Tensor, partial: Tensor,
    backward: bool,
) -> None:  # fmt: skip
    """`output` and `other` are [B, N, n, d], all else that has images [B, n, N, d]."""
    batch, num_heads, tokens, head_dim = known_sizes(value)
    tiles = ceil_div(tokens, ROWS)
    wrap_triton(_mix)[(batch * num_heads * tiles,)](
        weights, value, content, scale, output, other, partial,
        *weights.stride(), *places(value), *places(content),
        *places(output.transpose(1, 2)), *places(other.transpose(1, 2)),
        num_heads, tokens, *weights.shape[1:], tiles,
        HEAD_DIM=head_dim, D=max(16, next_power_of_2(head_dim)), ROWS=ROWS, DEPTH=DEPTH, BACKWARD=backward,
        num_warps=MIX_WARPS, num_stages=STAGES,
    )  # fmt: skip


@Operator
def mix_positions(content: Tensor, value: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """scale·content + weights·value: content and value [B, n, N, d], weights [n, N, M], scale [n] → [B, n, N, d].

    The weights' columns beyond N are zeros up to M, a multiple of 16: see `gated_positions`.
    """
    content, value = dense_channels(content), dense_channels(value)
    output = positions_outside(value)
    with torch.cuda.device_of(value):
        _launch_mix(weights, value, content, scale, output, output, scale, backward=False)
    return output.transpose(1, 2)


@mix_positions.register_fake
def _(content, value, weights, scale):
    return positions_outside(value).transpose(1, 2)


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
        num_warps=GRADIENT_WARPS, num_stages=STAGES,
    )  # fmt: skip
    return weight_shares.sum(dim=0)


def _gradients(
    gradient: Tensor, content: Tensor, value: Tensor, weights: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, num_heads, tokens, _ = known_sizes(value)
    grad_content, grad_value = positions_outside(value), positions_outside(value)
    scale_shares = scale.new_empty(batch, num_heads, ceil_div(tokens, ROWS), dtype=torch.float32)
    _launch_mix(
        weights.transpose(1, 2), gradient, content, scale, grad_value, grad_content, scale_shares, backward=True
    )
    grad_weights = weight_gradient(gradient, value, weights)
    return grad_content.transpose(1, 2), grad_value.transpose(1, 2), grad_weights, scale_shares.sum(dim=(0, 2))


@Operator
def mix_positions_backward(
    gradient: Tensor, content: Tensor, value: Tensor, weights: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of content, value, weights (float32) and scale."""
    with torch.cuda.device_of(value):
        return _gradients(dense_channels(gradient), dense_channels(content), dense_channels(value), weights, scale)


@mix_positions_backward.register_fake
def _(gradient, content, value, weights, scale):
    return (
        positions_outside(value).transpose(1, 2),
        positions_outside(value).transpose(1, 2),
        torch.empty_like(weights, dtype=torch.float32),
        torch.empty_like(scale, dtype=torch.float32),
    )


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):
    content, value, weights, scale = ctx.saved_tensors  # once: checkpoints give them out once
    grads = mix_positions_backward(gradient, content, value, weights, scale)
    return grads[0], grads[1], grads[2].to(weights.dtype), grads[3].to(scale.dtype)


mix_positions.register_autograd(_backward, setup_context=_setup_context)
