"""GPSA whole on the GPU, content and position in one kernel: launches of the Triton kernels, as custom operators."""

from functools import cache

import torch
from torch import Tensor
from triton.runtime import driver

from . import _gated_triton_backward as backward_kernels
from . import _gated_triton_forward as forward_kernels
from . import _gated_triton_plans as plans
from .gated_layout import dense_channels, heads_outside, places, positions_outside, stride_unit
from .gated_triton import weight_gradient

LOG2_E = 1.4426950408889634


def _outputs(qkv: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Empty: the result [B, n, N, d], and the log-sum-exp [B, n, N] where it is kept."""
    result = positions_outside(heads_outside(qkv)[0])
    return result, qkv.new_empty(result.shape[:3] if keep else (0,), dtype=torch.float32)


@cache
def _shared_memory(device: int) -> int:
    """Bytes that a program may have."""
    return driver.active.utils.get_device_properties(device)["max_shared_mem"]


@torch.library.custom_op("nearsight::attend_gated", mutates_args=())
def attend_gated(qkv: Tensor, weights: Tensor, share: Tensor, scale: float, keep: bool) -> tuple[Tensor, Tensor]:
    """share · softmax(scale · q kᵀ) v + weights · v: qkv [B, N, 3, n, d], weights [n, N, M], share [n] → [B, n, N, d].

    The weights' columns beyond N are zeros up to M, a multiple of 16. Also the log-sum-exp of the logits in base 2,
    [B, n, N], where `keep` asks for it; the backward pass needs it.
    """
    output, log_sum = _outputs(qkv, keep)
    query, key, value = heads_outside(dense_channels(qkv))
    batch, num_heads, tokens, head_dim = query.shape
    plan = plans.forward_plan(_shared_memory(qkv.get_device()) if qkv.is_cuda else None)
    rows, tiles = plans.tiling(tokens, plan.rows)
    together = tiles if plan.all_tiles else 1
    groups = tiles // together
    unit = stride_unit(query, output)
    with torch.cuda.device_of(qkv):
        forward_kernels.over_tiles[(batch * num_heads * groups,)](
            query, key, value, weights.contiguous(), share, output, log_sum,
            *places(query, unit), *places(output, unit), num_heads, weights.shape[2], scale * LOG2_E,
            UNIT=unit, TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
            KEYS=plans.key_spans(tokens), ROWS=rows, TILES=together, GROUPS=groups,
            KEEP=keep, num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip
    return output, log_sum


@attend_gated.register_fake
def _(qkv, weights, share, scale, keep):
    return _outputs(qkv, keep)


@torch.library.custom_op("nearsight::attend_gated_backward", mutates_args=())
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


def _by_rows(
    gradient: Tensor, qkv: Tensor, share: Tensor, log_sum: Tensor, scale: float, grad_qkv: Tensor
) -> tuple[Tensor, Tensor]:
    """Writes ∂query into `grad_qkv`; returns Δ and ∂share."""
    plan = plans.ROWS
    query, key, value = heads_outside(qkv)
    grad_query = heads_outside(grad_qkv)[0]
    batch, num_heads, tokens, head_dim = query.shape
    rows, tiles = plans.tiling(tokens, plan.rows)
    delta = torch.empty_like(log_sum)
    share_part = log_sum.new_empty(batch, num_heads, tiles)
    unit = stride_unit(query, gradient, grad_query)
    backward_kernels.by_rows[(batch * num_heads * tiles,)](
        query, key, value, gradient, share, log_sum, grad_query, delta, share_part,
        *places(query, unit), *places(gradient, unit), *places(grad_query, unit), num_heads, scale * LOG2_E, scale,
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
    query, key, value = heads_outside(qkv)
    _, grad_key, grad_value = heads_outside(grad_qkv)
    batch, num_heads, tokens, head_dim = query.shape
    rows, tiles = plans.tiling(tokens, plan.rows)
    unit = stride_unit(query, gradient, grad_key)
    backward_kernels.by_columns[(batch * num_heads * tiles,)](
        query, key, value, gradient, weights, share, log_sum, delta, grad_key, grad_value,
        *places(query, unit), *places(gradient, unit), *places(grad_key, unit),
        num_heads, weights.shape[2], scale * LOG2_E, scale,
        UNIT=unit, TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
        ROWS=rows, STEP=min(plan.step, plans.power(tokens)), TILES=tiles,
        num_warps=plan.warps, num_stages=plan.stages, maxnreg=plan.registers,
    )  # fmt: skip


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


def _backward(ctx, gradient, _):
    qkv, weights, share, log_sum = ctx.saved_tensors
    grads = torch.ops.nearsight.attend_gated_backward(gradient, qkv, weights, share, log_sum, ctx.scale)
    return grads[0], grads[1].to(weights.dtype), grads[2].to(share.dtype), None, None


attend_gated.register_autograd(_backward, setup_context=_setup_context)
