"""The backend `triton`: local attention on the GPU, as operators that torch.compile and autograd know.

Query, key and value come packed as one projection makes them, [B, H, W, 2 or 3, n, d], and their gradient goes back in
one tensor of that shape. Only the projection, the output and the log-sum-exp of every query and head are kept for the
backward pass: nothing k²-sized touches memory.
"""

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from ..later import register_flop_formula
from ..sizes import next_power_of_2
from ..triton_launch import EDITION, Operator
from .launch import (
    Dense,
    Layout,
    Threads,
    Tilings,
    embedding_gradients,
    halo_sides,
    launch_backward,
    launch_forward,
    make_table,
)
from .window import Embeddings, Window, local_attention_flops

SUPPORTED_TYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 128
LARGEST_KERNEL_SIZE = 15
LARGEST_GRID = 65535  # along its second and third axis: rows of tiles, images
LARGEST_IMAGE = 2**31 - 1  # places in one image are 32-bit numbers
LARGEST_TABLE = 32  # offsets of a window, by row and by column; of one head at a time twice as many
KEYS_AT_ONCE = 32  # keys that a dense tile meets in one step: more need more registers, fewer leave latencies bare


def _by_tensor_cores(projected: Tensor) -> bool:
    """Thin heads would pay for padding; float32 would lose its digits."""
    return projected.element_size() == 2 and projected.shape[-1] > 8


def choose_tilings(projected: Tensor, kernel_size: int) -> Tilings:
    """What was fastest at a ResNet's four stages on an H200, and hardly slower where inductor drops its cap."""
    if not _by_tensor_cores(projected):
        return Tilings(Threads(8, 3, max_registers=128), Threads(4, 3), Threads(4, 3))
    return _dense_tilings(int(projected.shape[-1]), kernel_size)


@cache
def _dense_tilings(head_dim: int, kernel_size: int) -> Tilings:
    shapes = []
    for rows, cols in ((2, 8), (4, 4)):
        step = max(1, KEYS_AT_ONCE // next_power_of_2(cols + kernel_size - 1))
        shapes.append(Dense(rows, cols, step))
    tiling = min(shapes, key=lambda shape: math.prod(halo_sides(shape, kernel_size)))
    by_queries = by_keys = tiling
    if head_dim <= 16:  # what is read is small enough to be read two steps ahead
        by_queries = by_keys = replace(tiling, stages=3)
    elif head_dim <= 32:  # a few spilled registers cost less than the warps they would keep out
        by_queries = replace(tiling, max_registers=128)
    return Tilings(forward=tiling, backward_query=by_queries, backward_key_value=by_keys)


@Operator
def local_attention(
    projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    kernel_size: int, mask: bool, save_lse: bool, edition: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The forward pass: output [B, H, W, n, d] and, when it is saved, the log-sum-exp of every query and head.

    `edition` is that of `triton_launch`, whose place in a compiled graph this is.
    """
    kernel_size, projected = int(kernel_size), projected.contiguous()  # torch.compile may hand over a symbol
    output, lse = _outputs(projected, save_lse)
    with torch.cuda.device_of(projected):
        table = make_table(projected, row_embedding, col_embedding)
        launch_forward(
            choose_tilings(projected, kernel_size).forward,
            {"projected": projected, "table": table, "output": output, "lse": lse},
            kernel_size, HAS_POSITION=row_embedding is not None, MASK=mask, SAVE_LSE=save_lse,
        )  # fmt: skip
    return output, lse


@local_attention.register_fake
def _(projected, row_embedding, col_embedding, kernel_size, mask, save_lse, edition):
    return _outputs(projected, save_lse)


def _outputs(projected: Tensor, save_lse: bool) -> tuple[Tensor, Tensor]:
    batch, height, width, _, num_heads, head_dim = projected.shape
    output = projected.new_empty((batch, height, width, num_heads, head_dim))
    lse_shape: tuple[int, ...] = (0,)
    if save_lse and _by_tensor_cores(projected):
        lse_shape = (batch, num_heads, height, width)
    elif save_lse:
        lse_shape = (batch, height, width, Layout.of(projected).slots)
    return output, projected.new_empty(lse_shape, dtype=torch.float32)


@Operator
def local_attention_backward(
    grad_output: Tensor, projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    output: Tensor, lse: Tensor, kernel_size: int, mask: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the projection and of both embeddings; empty tensors for those that are absent."""
    kernel_size, projected = int(kernel_size), projected.contiguous()  # torch.compile may hand over a symbol
    grad_projected = projected.new_empty(projected.shape)
    with torch.cuda.device_of(projected):
        table = make_table(projected, row_embedding, col_embedding)
        tensors = {
            "projected": projected, "table": table, "output": output, "lse": lse,
            "grad_output": grad_output.contiguous(), "grad_projected": grad_projected,
        }  # fmt: skip
        tilings = choose_tilings(projected, kernel_size)
        sums = launch_backward(tilings, tensors, kernel_size, HAS_POSITION=row_embedding is not None, MASK=mask)
        if row_embedding is None or col_embedding is None:
            return grad_projected, projected.new_empty(0), projected.new_empty(0)
        return grad_projected, *embedding_gradients(projected, sums, row_embedding, col_embedding)


@local_attention_backward.register_fake
def _(grad_output, projected, row_embedding, col_embedding, output, lse, kernel_size, mask):
    grads = (projected.new_empty(0) if x is None else x.new_empty(x.shape) for x in (row_embedding, col_embedding))
    return projected.new_empty(projected.shape), *grads


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.kernel_size, ctx.mask = inputs[3:5]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the log-sum-exp


def _backward(ctx, grad_output, _):
    if grad_output is None:
        return None, None, None, None, None, None, None
    saved = ctx.saved_tensors
    grads = local_attention_backward(grad_output, *saved, ctx.kernel_size, ctx.mask)
    return *(None if x is None else grad for x, grad in zip(saved[:3], grads, strict=True)), None, None, None, None


local_attention.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.nearsight.local_attention)
def _(projected, row, col, kernel_size, mask, save_lse, edition, out_shape=None, **_):
    return local_attention_flops(projected, kernel_size, row is not None)


@register_flop_formula(torch.ops.nearsight.local_attention_backward)
def _(grad, projected, row, col, output, lse, kernel_size, mask, out_shape=None, **_):
    return 2 * local_attention_flops(projected, kernel_size, row is not None)


def refusal(projected: Tensor, embeddings: Embeddings, window: Window) -> str | None:
    """Why these kernels cannot run on these arguments, or None."""
    if window.stride != 1:
        return f"stride {window.stride} is not 1"
    if projected.dtype not in SUPPORTED_TYPES:
        return f"the projection is {projected.dtype}; float16, bfloat16 or float32 is needed"
    if projected.shape[-1] > LARGEST_HEAD_DIM:
        return f"head dimension {projected.shape[-1]} exceeds {LARGEST_HEAD_DIM}"
    if window.kernel_size > LARGEST_KERNEL_SIZE:
        return f"kernel size {window.kernel_size} exceeds {LARGEST_KERNEL_SIZE}"
    if embeddings is not None and len(embeddings[0]) != len(embeddings[1]):
        return f"there are {len(embeddings[0])} sets of row and {len(embeddings[1])} of column embeddings"
    if projected.numel() == 0:
        return "there is nothing to compute"
    batch, height, width, num_parts, num_heads, head_dim = projected.shape
    if batch > LARGEST_GRID:
        return f"a batch of {batch} exceeds {LARGEST_GRID}, the grid's last axis"
    if height > LARGEST_GRID:
        return f"an image of {height} rows exceeds {LARGEST_GRID}, the grid's second axis"
    numbers_per_pixel = max(num_heads * num_parts * head_dim, max(2, num_heads) * LARGEST_TABLE)
    if height * width * numbers_per_pixel > LARGEST_IMAGE:
        return f"an image of {height}×{width} pixels is too large for 32-bit places"
    return None


def run(projected: Tensor, embeddings: Embeddings, window: Window) -> Tensor:
    row, col = embeddings or (None, None)
    save_lse = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (projected, row, col))
    return local_attention(projected, row, col, window.kernel_size, window.border == "mask", save_lse, EDITION)[0]
