"""Local attention on the GPU: launches of the Triton kernels, as custom operators that torch.compile and autograd know.

Only q, k, v, the output and a log-sum-exp per query and thread are kept for the backward pass: nothing k²-sized touches
memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..functional.local import Border
from ._local_triton_launch import (
    Dense,
    Layout,
    Threads,
    Tiling,
    embedding_gradients,
    halo_sides,
    launch_backward_key_value,
    launch_backward_query,
    launch_forward,
    make_table,
)
from .dispatch import exporting

SUPPORTED_TYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 128
LARGEST_KERNEL_SIZE = 15
LARGEST_BATCH = 65535
KEYS_AT_ONCE = 32  # keys that a dense tile meets in one step: more need more registers, fewer leave latencies bare


@dataclass(frozen=True)
class Tilings:
    """The tiling of each of the three kernels."""

    forward: Tiling
    backward_query: Tiling
    backward_key_value: Tiling


def choose_tilings(query: Tensor, kernel_size: int) -> Tilings:
    """What was fastest at a ResNet's four stages on an H200: threads for thin heads and float32, else tensor cores."""
    if query.element_size() != 2 or query.shape[-1] <= 8:
        return Tilings(Threads(8, 1, 4, 168), Threads(8, 1, 4), Threads(4, 2, 3))
    wide, square = halo_sides(2, 8, kernel_size), halo_sides(4, 4, kernel_size)
    if wide[0] * wide[1] <= square[0] * square[1]:
        rows, cols, step = 2, 8, max(1, KEYS_AT_ONCE // wide[1])
    else:
        rows, cols, step = 4, 4, max(1, KEYS_AT_ONCE // square[1])
    thin, thick = query.shape[-1] <= 16, query.shape[-1] > 32
    return Tilings(
        Dense(rows, cols, step, stages=2 if thick else 3),
        Dense(rows, cols, step, max_registers=128 if thin else None),
        Dense(rows, cols, max(1, step // 2) if thick else step),
    )


def _dense_channels(tensor: Tensor) -> Tensor:
    """The same tensor when its heads and channels lie side by side, a contiguous copy of it otherwise."""
    dense = tensor.stride(-1) == 1 and (tensor.shape[-2] == 1 or tensor.stride(-2) == tensor.shape[-1])
    return tensor if dense else tensor.contiguous()


@torch.library.custom_op("nearsight::local_attention", mutates_args=())
def local_attention_op(
    query: Tensor, key: Tensor | None, value: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    kernel_size: int, mask: bool, save_lse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The forward pass: output [B, H, W, n, d] and, when it is saved, the log-sum-exp [B, H, W, slots]."""
    with torch.cuda.device_of(query):
        return _forward(query, key, value, row_embedding, col_embedding, kernel_size, mask, save_lse)


def _forward(
    query: Tensor, key: Tensor | None, value: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    kernel_size: int, mask: bool, save_lse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    query, value = _dense_channels(query), _dense_channels(value)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse_shape = (*query.shape[:3], Layout.of(query).slots) if save_lse else (0,)
    lse = torch.empty(lse_shape, dtype=torch.float32, device=query.device)
    inputs = {"query": query, "key": value if key is None else _dense_channels(key), "value": value}
    table = _table(query, row_embedding, col_embedding)
    others = {"table": lse if table is None else table, "output": output, "lse": lse}
    launch_forward(
        choose_tilings(query, kernel_size).forward, inputs, others, kernel_size,
        HAS_KEY=key is not None, HAS_POSITION=table is not None, MASK=mask, SAVE_LSE=save_lse,
    )  # fmt: skip
    return output, lse


def _table(query: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None) -> Tensor | None:
    if row_embedding is None or col_embedding is None:
        return None
    return make_table(row_embedding, col_embedding, query.shape[-2])


@local_attention_op.register_fake
def _(query, key, value, row_embedding, col_embedding, kernel_size, mask, save_lse):
    lse_shape = (*query.shape[:3], Layout.of(query).slots) if save_lse else (0,)
    return query.new_empty(query.shape), query.new_empty(lse_shape, dtype=torch.float32)


@torch.library.custom_op("nearsight::local_attention_backward", mutates_args=())
def local_attention_backward_op(
    grad_output: Tensor, query: Tensor, key: Tensor | None, value: Tensor,
    row_embedding: Tensor | None, col_embedding: Tensor | None,
    output: Tensor, lse: Tensor, kernel_size: int, mask: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of query, key, value and both embeddings; empty tensors for those that are absent."""
    with torch.cuda.device_of(query):
        return _gradients(grad_output, query, key, value, row_embedding, col_embedding, output, lse, kernel_size, mask)


def _gradients(
    grad_output: Tensor, query: Tensor, key: Tensor | None, value: Tensor,
    row_embedding: Tensor | None, col_embedding: Tensor | None,
    output: Tensor, lse: Tensor, kernel_size: int, mask: bool,
) -> list[Tensor]:  # fmt: skip
    query, value, grad_output = _dense_channels(query), _dense_channels(value), grad_output.contiguous()
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_value = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_key = torch.empty(query.shape if key is not None else (0,), dtype=query.dtype, device=query.device)
    tilings = choose_tilings(query, kernel_size)
    table = _table(query, row_embedding, col_embedding)
    flags = {"HAS_KEY": key is not None, "HAS_POSITION": table is not None}
    inputs = {
        "query": query,
        "key": value if key is None else _dense_channels(key),
        "value": value,
        "grad_output": grad_output,
    }
    others = {"table": lse if table is None else table, "lse": lse, "delta": torch.empty_like(lse)}
    sums = launch_backward_query(
        tilings.backward_query, {**inputs, "output": output}, {**others, "grad_query": grad_query}, kernel_size,
        **flags, MASK=mask,
    )  # fmt: skip
    launch_backward_key_value(
        tilings.backward_key_value, inputs, {**others, "grad_key": grad_key, "grad_value": grad_value}, kernel_size,
        **flags,
    )  # fmt: skip
    if row_embedding is None or col_embedding is None:
        return [grad_query, grad_key, grad_value, lse.new_empty(0), lse.new_empty(0)]
    grad_row, grad_col = embedding_gradients(query, sums, kernel_size, row_embedding.shape[0])
    return [
        grad_query,
        grad_key,
        grad_value,
        torch.empty_like(row_embedding).copy_(grad_row),
        torch.empty_like(col_embedding).copy_(grad_col),
    ]


@local_attention_backward_op.register_fake
def _(grad_output, query, key, value, row_embedding, col_embedding, output, lse, kernel_size, mask):
    # Gradients of query, key and value are dense whatever the strides of their tensors.
    grads = [query.new_empty(0) if x is None else x.new_empty(x.shape) for x in (query, key, value)]
    return grads + [lse.new_empty(0) if x is None else torch.empty_like(x) for x in (row_embedding, col_embedding)]


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.kernel_size, ctx.mask = inputs[5:7]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad_output, _):
    saved = ctx.saved_tensors
    grads = torch.ops.nearsight.local_attention_backward(grad_output, *saved, ctx.kernel_size, ctx.mask)
    return *(None if x is None else grad for x, grad in zip(saved[:5], grads, strict=True)), None, None, None


local_attention_op.register_autograd(_backward, setup_context=_setup_context)


def refusal(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
) -> str | None:
    """Why these kernels cannot run on these arguments, or None."""
    if exporting():
        return "an exported graph holds plain operators only"
    if not query.is_cuda:
        return f"the tensors are on {query.device.type}, not on a CUDA device"
    if stride != 1:
        return f"stride {stride} is not 1"
    if (
        query.dtype not in SUPPORTED_TYPES
        or value.dtype != query.dtype
        or (key is not None and key.dtype != query.dtype)
    ):
        return f"query and value are {query.dtype} and {value.dtype}; one of float16, bfloat16, float32 is needed"
    if query.shape[-1] > LARGEST_HEAD_DIM:
        return f"head dimension {query.shape[-1]} exceeds {LARGEST_HEAD_DIM}"
    if kernel_size > LARGEST_KERNEL_SIZE:
        return f"kernel size {kernel_size} exceeds {LARGEST_KERNEL_SIZE}"
    if query.numel() == 0:
        return "there is nothing to compute"
    if query.shape[0] > LARGEST_BATCH:
        return f"a batch of {query.shape[0]} exceeds {LARGEST_BATCH}, the grid's last axis"
    return None


def run(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
) -> Tensor:
    """Local attention by the Triton kernels; arguments as in `functional.local.local_attention`."""
    positioned = row_embedding is not None and col_embedding is not None
    inputs = (query, key, value, *((row_embedding, col_embedding) if positioned else (None, None)))
    save_lse = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    return torch.ops.nearsight.local_attention(*inputs, kernel_size, border == "mask", save_lse)[0]
