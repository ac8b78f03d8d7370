"""Attention among all tokens of small grids on a CPU by compiled loops: y = (a · softmax(scale · q kᵀ) + P) v.

With a = 1 and no P it is torch's fused attention; with a = 1 − σ(λ) and P = σ(λ) · softmax(v_posᵀ r) it is GPSA.
torch's calls a matrix product for every block of queries and keys, which costs more than a product of few keys and
channels itself. Query, key and value come packed, [B, N, 3, n, d], and their gradient goes back packed.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from . import compiled_loops
from .compat import plain_operators_needed
from .compiled_loops import FLOATS, SUPPORTED_TYPES, as_float32, loading_trouble
from .later import register_flop_formula
from .sizes import LANES

Axes = tuple[Tensor, Tensor] | None

MOST_TOKENS = 256  # two maps of weights must stay in a processor's second cache
MOST_GROUPS = 16  # of images: each has a sum of its own for the gradient of P


def _job(qkv: Tensor, has_position: bool, scratch_size: int) -> compiled_loops.Job:
    batch, tokens, _, num_heads, head_dim = qkv.shape
    groups = min(batch, MOST_GROUPS)
    heads_of_task = num_heads if batch >= MOST_GROUPS else 1
    sizes = (batch, tokens, groups, 3, num_heads, head_dim, 0, heads_of_task)
    return compiled_loops.Job(groups * num_heads // heads_of_task, scratch_size, sizes, (False, False, has_position))


def _padded(number: int) -> int:
    return -(-number // LANES) * LANES


def _by_key(of_keys: Tensor, by_row: Tensor, by_col: Tensor) -> Tensor:
    """A view [n, H, W, H, W] of numbers [n, N, padded N]: by the key's row and column, and the query's."""
    num_heads, (height, width) = len(by_row), (by_row.shape[1], by_col.shape[1])
    step = of_keys.shape[-1]
    strides = (height * width * step, width * step, step, width, 1)
    return of_keys.as_strided((num_heads, height, width, height, width), strides)


def _inputs(qkv: Tensor, amount: Tensor | None, axes: Axes, scale: float) -> list[Tensor]:
    """As the loops read them: P by key and query, each key's queries padded to whole vectors."""
    tokens, num_heads = qkv.shape[1], qkv.shape[3]
    amounts = torch.ones(num_heads, **FLOATS) if amount is None else as_float32(amount)
    positions = torch.empty(0, **FLOATS)
    if axes is not None:
        by_row, by_col = (as_float32(axis) for axis in axes)
        positions = torch.zeros(num_heads, tokens, _padded(tokens), **FLOATS)
        query_rows, query_cols = by_row.transpose(1, 2)[:, :, None, :, None], by_col.transpose(1, 2)[:, None, :, None]
        torch.mul(query_rows, query_cols, out=_by_key(positions, by_row, by_col))
    return [as_float32(qkv), amounts, torch.tensor([scale], **FLOATS), positions]


def _axes(by_row: Tensor | None, by_col: Tensor | None) -> Axes:
    return None if by_row is None or by_col is None else (by_row, by_col)


def _forward(qkv: Tensor, amount: Tensor | None, by_row: Tensor | None, by_col: Tensor | None, scale: float) -> Tensor:
    batch, tokens, _, num_heads, head_dim = qkv.shape
    output = torch.empty(batch, tokens, num_heads, head_dim, **FLOATS)
    job = _job(qkv, by_row is not None, (head_dim + tokens) * LANES)
    tensors = [*_inputs(qkv, amount, _axes(by_row, by_col), scale), output]
    compiled_loops.run("tokens_forward", job, tensors)
    return output.to(qkv.dtype)


def _backward(
    gradient: Tensor, qkv: Tensor, amount: Tensor | None, by_row: Tensor | None, by_col: Tensor | None, scale: float
) -> list[Tensor]:
    _, tokens, _, num_heads, head_dim = qkv.shape
    padded, axes = _padded(tokens), _axes(by_row, by_col)
    maps = 2 * tokens * (padded + LANES) + 2 * tokens * _padded(head_dim)
    job = _job(qkv, axes is not None, maps + (2 * head_dim + 4) * LANES)
    groups = job.sizes[2]
    into_qkv = torch.empty(qkv.shape, **FLOATS)
    into_amounts = torch.zeros(groups, num_heads, **FLOATS)
    into_positions = torch.zeros(groups, num_heads, 0 if axes is None else tokens, padded, **FLOATS)
    tensors = [*_inputs(qkv, amount, axes, scale), as_float32(gradient), into_qkv, into_amounts, into_positions]
    compiled_loops.run("tokens_backward", job, tensors)
    into_axes = [qkv.new_empty(0), qkv.new_empty(0)]
    if axes is not None:
        into_p = _by_key(into_positions.sum(dim=0), *axes)  # a, b: row and column of the key; i, j: of the query
        into_axes = [
            torch.einsum("nabij,njb->nia", into_p, as_float32(axes[1])).to(axes[0].dtype),
            torch.einsum("nabij,nia->njb", into_p, as_float32(axes[0])).to(axes[1].dtype),
        ]
    into_amount = qkv.new_empty(0) if amount is None else into_amounts.sum(dim=0).to(amount.dtype)
    return [into_qkv.to(qkv.dtype), into_amount, *into_axes]


_INPUTS = "Tensor qkv, Tensor? amount, Tensor? by_row, Tensor? by_col, float scale"


def _define(name: str, function, schema: str):
    plain = torch.autocast("cpu", enabled=False)(function)
    return torch.library.custom_op(f"nearsight::{name}", plain, mutates_args=(), device_types="cpu", schema=schema)


_operator = _define("token_attention", _forward, f"({_INPUTS}) -> Tensor")
_derivative = _define("token_attention_backward", _backward, f"(Tensor gradient, {_INPUTS}) -> Tensor[]")


@_operator.register_fake
def _(qkv, amount, by_row, by_col, scale):
    return qkv.new_empty((*qkv.shape[:2], *qkv.shape[3:]))


@_derivative.register_fake
def _(gradient, qkv, amount, by_row, by_col, scale):
    return [qkv.new_empty(0) if x is None else x.new_empty(x.shape) for x in (qkv, amount, by_row, by_col)]


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.scale = inputs[4]


def _differentiate(ctx, gradient):
    inputs = ctx.saved_tensors
    gradients = _derivative(gradient, *inputs, ctx.scale)
    return *(None if x is None else g for x, g in zip(inputs, gradients, strict=True)), None


_operator.register_autograd(_differentiate, setup_context=_setup_context)


def _flops(qkv_shape) -> int:
    batch, tokens, _, num_heads, head_dim = qkv_shape
    return 4 * batch * num_heads * tokens**2 * head_dim


@register_flop_formula(torch.ops.nearsight.token_attention)
def _(qkv, amount, by_row, by_col, scale, out_shape=None, **_):
    return _flops(qkv)


@register_flop_formula(torch.ops.nearsight.token_attention_backward)
def _(gradient, qkv, amount, by_row, by_col, scale, out_shape=None, **_):
    return 2 * _flops(qkv)


def refusal(qkv: Tensor) -> str | None:
    """Why the loops cannot run on this packed projection, or None."""
    reason = plain_operators_needed()
    if reason is not None:
        return reason
    if not qkv.is_cpu:
        return f"the tensors are on {qkv.device.type}, not on the CPU"
    if qkv.dtype not in SUPPORTED_TYPES:
        return f"the projection is {qkv.dtype}; float32, bfloat16 or float16 is needed"
    if qkv.numel() == 0:
        return "there is nothing to compute"
    if qkv.shape[1] > MOST_TOKENS:
        return f"{qkv.shape[1]} tokens are more than {MOST_TOKENS}, whose weights stay in a processor's cache"
    return loading_trouble()


def token_attention(
    qkv: Tensor, amount: Tensor | None = None, axes: Axes = None, *, scale: float | None = None
) -> Tensor:
    """(a · softmax(scale · q kᵀ) + P) v: qkv [B,N,3,n,d], a [n], P = P_row ⊗ P_col → [B,N,n,d].

    `axes` are P_row [n,H,H] and P_col [n,W,W] by query and key, H·W = N; `scale` None is 1/√d. By loops where they can
    run (`refusal`), else by torch's fused attention.
    """
    scale = 1 / math.sqrt(qkv.shape[-1]) if scale is None else scale
    if refusal(qkv) is None:
        return _operator(qkv, amount, *(axes or (None, None)), scale)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    if amount is not None:
        content = amount[:, None, None].to(content.dtype) * content
    if axes is not None:
        content = content + outer_product(*axes).to(content.dtype) @ value
    return content.transpose(1, 2)


def outer_product(by_row: Tensor, by_col: Tensor) -> Tensor:
    """P_row ⊗ P_col: [n,H,H] and [n,W,W] → [n,N,N]."""
    return (by_row[:, :, None, :, None] * by_col[:, None, :, None, :]).flatten(3, 4).flatten(1, 2)
