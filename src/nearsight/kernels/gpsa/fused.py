"""The backend `fused`: torch's fused attention for content, then one kernel that multiplies by P and mixes."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..later import register_flop_formula
from ..sizes import ceil_div, next_power_of_2
from ..triton_launch import Operator, wrap_triton
from .fused_kernels import _mix
from .layout import Positions, dense_channels, heads_outside, known_sizes, places, positions_outside
from .positions import weight_gradient, weights_and_share

LARGEST_FUSED = 8192  # positions whose N×N weights of 32 heads have 32-bit places
ROWS, DEPTH, WARPS, STAGES = 128, 32, 4, 3


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
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


@Operator
def mix_positions(content: Tensor, value: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """scale·content + weights·value: content and value [B, n, N, d], weights [n, N, M], scale [n] → [B, n, N, d].

    The weights' columns beyond N are zeros up to M, a multiple of 16: see `positions`.
    """
    content, value = dense_channels(content), dense_channels(value)
    output = positions_outside(value)
    with torch.cuda.device_of(value):
        _launch_mix(weights, value, content, scale, output, output, scale, backward=False)
    return output.transpose(1, 2)


@mix_positions.register_fake
def _(content, value, weights, scale):
    return positions_outside(value).transpose(1, 2)


@Operator
def mix_positions_backward(
    gradient: Tensor, content: Tensor, value: Tensor, weights: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of content, value, weights (float32) and scale."""
    gradient, content, value = dense_channels(gradient), dense_channels(content), dense_channels(value)
    batch, num_heads, tokens, _ = known_sizes(value)
    grad_content, grad_value = positions_outside(value), positions_outside(value)
    scale_shares = scale.new_empty(batch, num_heads, ceil_div(tokens, ROWS), dtype=torch.float32)
    with torch.cuda.device_of(value):
        _launch_mix(
            weights.transpose(1, 2), gradient, content, scale, grad_value, grad_content, scale_shares, backward=True
        )
        grad_weights = weight_gradient(gradient, value, weights)
    return grad_content.transpose(1, 2), grad_value.transpose(1, 2), grad_weights, scale_shares.sum(dim=(0, 2))


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


def _flops(value_shape) -> int:
    """P v; what the backward pass computes again is left out."""
    batch, num_heads, tokens, head_dim = value_shape
    return 2 * batch * num_heads * tokens * tokens * head_dim


@register_flop_formula(torch.ops.nearsight.mix_positions)
def _(content, value, weights, scale, out_shape=None, **_):
    return _flops(value)


@register_flop_formula(torch.ops.nearsight.mix_positions_backward)
def _(gradient, content, value, weights, scale, out_shape=None, **_):
    return 2 * _flops(value)


def refusal(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    if qkv.dtype not in (torch.float16, torch.bfloat16):
        return f"values are {qkv.dtype}; float16 or bfloat16 is needed"
    if qkv.shape[-1] > 128:
        return f"head dimension {qkv.shape[-1]} exceeds 128"
    if qkv.numel() == 0:
        return "there is nothing to compute"
    if qkv.shape[1] > LARGEST_FUSED:
        return f"{qkv.shape[1]} positions make N×N weights of 32-bit places too large; {LARGEST_FUSED} do not"
    return None


def run(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    weights, share = weights_and_share(positions, qkv.dtype)
    query, key, value = heads_outside(qkv)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return mix_positions(content, value, weights, share)
