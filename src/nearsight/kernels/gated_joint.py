"""GPSA whole on the GPU, content and position in one kernel: launches of the Triton kernels, as custom operators."""

import torch
from torch import Tensor

from . import _gated_triton_backward as backward_kernels
from . import _gated_triton_forward as forward_kernels
from . import _gated_triton_plans as plans
from .gated_triton import _dense_channels, _places, _positions_outside, weight_gradient

LOG2_E = 1.4426950408889634


@torch.library.custom_op("nearsight::attend_gated", mutates_args=())
def attend_gated(
    query: Tensor, key: Tensor, value: Tensor, weights: Tensor, share: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """share · softmax(scale · q kᵀ) v + weights · v: q, k, v [B, n, N, d], weights [n, N, M], share [n] → [B, n, N, d].

    The weights' columns beyond N are zeros up to M, a multiple of 16. Also the log-sum-exp of the logits in base 2,
    [B, n, N], where `keep` asks for it; the backward pass needs it.
    """
    query, key, value = _dense_channels(query), _dense_channels(key), _dense_channels(value)
    output, log_sum = _positions_outside(value), _log_sum(value, keep)
    batch, num_heads, tokens, head_dim = value.shape
    plan = plans.FORWARD
    rows, tiles, tail = plans.tiling(tokens, plan.rows, plan.tail)
    together = tiles if plan.all_tiles else 1
    groups = tiles // together
    with torch.cuda.device_of(value):
        forward_kernels.over_tiles[(batch * num_heads * groups,)](
            query, key, value, weights.contiguous(), share, output, log_sum,
            *_places(query), *_places(key), *_places(value), *_places(output),
            num_heads, weights.shape[2], scale * LOG2_E,
            TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
            KEYS=plans.key_spans(tokens, plan.spare_keys), ROWS=rows, TILES=together, GROUPS=groups, TAIL=tail,
            ADD=plan.add, KEEP=keep,
            num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip
    return output, log_sum


def _log_sum(value: Tensor, keep: bool) -> Tensor:
    return value.new_empty(value.shape[:3] if keep else (0,), dtype=torch.float32)


@attend_gated.register_fake
def _(query, key, value, weights, share, scale, keep):
    return _positions_outside(value), _log_sum(value, keep)


@torch.library.custom_op("nearsight::attend_gated_backward", mutates_args=())
def attend_gated_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, share: Tensor, log_sum: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value, weights (float32) and share."""
    gradient, query, key, value = (_dense_channels(x) for x in (gradient, query, key, value))
    weights = weights.contiguous()
    with torch.cuda.device_of(value):
        grad_query, delta, grad_share = _by_rows(gradient, query, key, value, share, log_sum, scale)
        grad_key, grad_value = _by_columns(gradient, query, key, value, weights, share, log_sum, delta, scale)
        return grad_query, grad_key, grad_value, weight_gradient(gradient, value, weights), grad_share


def _by_rows(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, share: Tensor, log_sum: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    plan = plans.ROWS
    batch, num_heads, tokens, head_dim = value.shape
    rows, tiles, tail = plans.tiling(tokens, plan.rows, plan.tail)
    grad_query, delta = _positions_outside(value), torch.empty_like(log_sum)
    share_part = log_sum.new_empty(batch, num_heads, tiles + (tail > 0))
    backward_kernels.by_rows[(batch * num_heads * tiles,)](
        query, key, value, gradient, share, log_sum, grad_query, delta, share_part,
        *_places(query), *_places(key), *_places(value), *_places(gradient), *_places(grad_query),
        num_heads, scale * LOG2_E, scale,
        TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
        KEYS=plans.key_spans(tokens, plan.spare_keys), ROWS=rows, TILES=tiles, TAIL=tail,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return grad_query, delta, share_part.sum(dim=(0, 2))


def _by_columns(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, share: Tensor, log_sum: Tensor,
    delta: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    plan = plans.COLUMNS
    batch, num_heads, tokens, head_dim = value.shape
    rows, tiles, tail = plans.tiling(tokens, plan.rows, plan.tail)
    grad_key, grad_value = _positions_outside(value), _positions_outside(value)
    backward_kernels.by_columns[(batch * num_heads * (tiles + (tail > 0)),)](
        query, key, value, gradient, weights, share, log_sum, delta, grad_key, grad_value,
        *_places(query), *_places(key), *_places(value), *_places(gradient), *_places(grad_key), *_places(grad_value),
        num_heads, weights.shape[2], scale * LOG2_E, scale,
        TOKENS=tokens, HEAD_DIM=head_dim, CHANNELS=plans.channel_spans(head_dim, plan.spare_channels),
        ROWS=rows, STEP=min(plan.step, plans.power(tokens)), TILES=tiles,
        TAIL=tail, TAIL_CHANNELS=plans.channel_spans(head_dim, spare=False), TAIL_STEP=plans.TAIL_STEP, ADD=plan.add,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return grad_key, grad_value


@attend_gated_backward.register_fake
def _(gradient, query, key, value, weights, share, log_sum, scale):
    return (
        *(_positions_outside(value) for _ in range(3)),
        torch.empty_like(weights, dtype=torch.float32, memory_format=torch.contiguous_format),
        torch.empty_like(share, dtype=torch.float32),
    )


def _setup_context(ctx, inputs, output):
    *tensors, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx, gradient, _):
    weights, share = ctx.saved_tensors[3:5]
    grads = torch.ops.nearsight.attend_gated_backward(gradient, *ctx.saved_tensors, ctx.scale)
    return *grads[:3], grads[3].to(weights.dtype), grads[4].to(share.dtype), None, None


attend_gated.register_autograd(_backward, setup_context=_setup_context)
