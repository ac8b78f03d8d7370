"""The backend `joint`: content and position of GPSA in one GPU kernel each way.

What kernels write is fresh and given to them whole, never as views: torch.compile would copy around a view.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..later import register_flop_formula
from ..triton_launch import Operator, wrap_triton
from . import fused
from . import joint_plans as plans
from .joint_kernels import by_columns, by_rows, over_tiles
from .layout import (
    Positions,
    dense_channels,
    heads_outside,
    known_sizes,
    packed_places,
    places,
    positions_outside,
    stride_unit,
)
from .positions import weight_gradient, weights_and_share

LARGEST_HEAD = 64  # channels that the kernel's tiles have room for
LONGEST_ROW = 256  # keys of a 16×16 grid: the kernel holds a row of them in registers
LOG2_E = 1.4426950408889634


def _outputs(qkv: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Empty: the result [B, N, n, d], and the log-sum-exp [B, n, N] where it is kept."""
    output = positions_outside(qkv.select(2, 0).transpose(1, 2))
    batch, tokens, num_heads, _ = output.shape
    return output, qkv.new_empty((batch, num_heads, tokens) if keep else (0,), dtype=torch.float32)


@cache
def _shared_memory(device: int) -> int:
    """Bytes that a program may have."""
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs leave this one out
    return properties.shared_memory_per_block_optin


@Operator
def attend_gated(qkv: Tensor, weights: Tensor, share: Tensor, scale: float, keep: bool) -> tuple[Tensor, Tensor]:
    """share · softmax(scale · q kᵀ) v + weights · v: qkv [B, N, 3, n, d], weights [n, N, M], share [n] → [B, n, N, d].

    The weights' columns beyond N are zeros up to M, a multiple of 16. Also the log-sum-exp of the logits in base 2,
    [B, n, N], where `keep` asks for it; the backward pass needs it.
    """
    qkv = dense_channels(qkv)
    output, log_sum = _outputs(qkv, keep)
    result = output.transpose(1, 2)
    batch, num_heads, tokens, head_dim = known_sizes(result)
    plan = plans.forward_plan(_shared_memory(qkv.get_device()) if qkv.is_cuda else None)
    rows, tiles = plans.tiling(tokens, plan.rows)
    together = tiles if plan.all_tiles else 1
    groups = tiles // together
    unit = stride_unit(qkv, output)
    with torch.cuda.device_of(qkv):
        wrap_triton(over_tiles)[(batch * num_heads * groups,)](
            qkv, weights.contiguous(), share, output, log_sum,
            *packed_places(qkv, unit), *places(result, unit), num_heads, weights.shape[2], scale * LOG2_E,
            UNIT=unit, TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
            KEYS=plans.key_spans(tokens), ROWS=rows, TILES=together, GROUPS=groups,
            KEEP=keep, num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip
    return result, log_sum


@attend_gated.register_fake
def _(qkv, weights, share, scale, keep):
    output, log_sum = _outputs(qkv, keep)
    return output.transpose(1, 2), log_sum


def _by_rows(
    gradient: Tensor, qkv: Tensor, share: Tensor, log_sum: Tensor, scale: float, grad_qkv: Tensor
) -> tuple[Tensor, Tensor]:
    """Writes ∂query into `grad_qkv`; returns Δ and ∂share."""
    plan = plans.ROWS
    batch, num_heads, tokens, head_dim = known_sizes(gradient)
    rows, tiles = plans.tiling(tokens, plan.rows)
    delta = torch.empty_like(log_sum)
    share_part = log_sum.new_empty(batch, num_heads, tiles)
    unit = stride_unit(qkv, gradient, grad_qkv)
    wrap_triton(by_rows)[(batch * num_heads * tiles,)](
        qkv, gradient, share, log_sum, grad_qkv, delta, share_part,
        *packed_places(qkv, unit), *places(gradient, unit), *packed_places(grad_qkv, unit)[:3],
        num_heads, scale * LOG2_E, scale,
        UNIT=unit, TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
        KEYS=plans.key_spans(tokens), ROWS=rows, TILES=tiles,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return delta, share_part.sum(dim=(0, 2))


def _by_columns(
    gradient: Tensor, qkv: Tensor, weights: Tensor, share: Tensor, log_sum: Tensor, delta: Tensor, scale: float,
    grad_qkv: Tensor,
) -> None:  # fmt: skip
    """Writes ∂key and ∂value into `grad_qkv`."""
    plan = plans.COLUMNS
    batch, num_heads, tokens, head_dim = known_sizes(gradient)
    rows, tiles = plans.tiling(tokens, plan.rows)
    unit = stride_unit(qkv, gradient, grad_qkv)
    wrap_triton(by_columns)[(batch * num_heads * tiles,)](
        qkv, gradient, weights, share, log_sum, delta, grad_qkv,
        *packed_places(qkv, unit), *places(gradient, unit), *packed_places(grad_qkv, unit),
        num_heads, weights.shape[2], scale * LOG2_E, scale,
        UNIT=unit, TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
        ROWS=rows, STEP=min(plan.step, plans.power(tokens)), TILES=tiles,
        num_warps=plan.warps, num_stages=plan.stages, maxnreg=plan.registers,
    )  # fmt: skip


@Operator
def attend_gated_backward(
    gradient: Tensor, qkv: Tensor, weights: Tensor, share: Tensor, log_sum: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of qkv, whole and packed like it, of weights (float32) and of share."""
    gradient, qkv, weights = dense_channels(gradient), dense_channels(qkv), weights.contiguous()
    grad_qkv = qkv.new_empty(qkv.shape)
    with torch.cuda.device_of(qkv):
        delta, grad_share = _by_rows(gradient, qkv, share, log_sum, scale, grad_qkv)
        _by_columns(gradient, qkv, weights, share, log_sum, delta, scale, grad_qkv)
        return grad_qkv, weight_gradient(gradient, heads_outside(qkv)[2], weights), grad_share


@attend_gated_backward.register_fake
def _(gradient, qkv, weights, share, log_sum, scale):
    return (
        qkv.new_empty(qkv.shape),
        weights.new_empty(weights.shape, dtype=torch.float32),
        share.new_empty(share.shape, dtype=torch.float32),
    )


def _setup_context(ctx, inputs, output):
    *tensors, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the log-sum-exp


def _backward(ctx, gradient, _):
    if gradient is None:
        return None, None, None, None, None
    qkv, weights, share, log_sum = ctx.saved_tensors
    grads = attend_gated_backward(gradient, qkv, weights, share, log_sum, ctx.scale)
    return grads[0], grads[1].to(weights.dtype), grads[2].to(share.dtype), None, None


attend_gated.register_autograd(_backward, setup_context=_setup_context)


def _flops(qkv_shape) -> int:
    """q kᵀ, and the product with v: position is added to its weights. What backward computes again is left out."""
    batch, tokens, _, num_heads, head_dim = qkv_shape
    return 4 * batch * num_heads * tokens * tokens * head_dim


@register_flop_formula(torch.ops.nearsight.attend_gated)
def _(qkv, weights, share, scale, keep, out_shape=None, **_):
    return _flops(qkv)


@register_flop_formula(torch.ops.nearsight.attend_gated_backward)
def _(gradient, qkv, weights, share, log_sum, scale, out_shape=None, **_):
    return 2 * _flops(qkv)


def refusal(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    reason = fused.refusal(qkv, positions, scale)
    if reason is not None:
        return reason
    if qkv.shape[-1] > LARGEST_HEAD:
        return f"head dimension {qkv.shape[-1]} exceeds {LARGEST_HEAD}"
    if qkv.shape[1] > LONGEST_ROW:
        return f"a row of {qkv.shape[1]} keys is not held at once; {LONGEST_ROW} are"
    if scale is not None and scale <= 0:
        return f"scale {scale} is not positive"
    return None


def run(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    weights, share = weights_and_share(positions, qkv.dtype)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (qkv, weights, share))
    scale = qkv.shape[-1] ** -0.5 if scale is None else float(scale)
    return attend_gated(qkv, weights, share, scale, keep)[0]
