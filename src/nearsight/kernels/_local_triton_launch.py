"""Launches of the two families of Triton kernels for local attention, and the choice between them.

`Threads` (a thread for each query and head) suits thin heads and any type; `Dense` (tensor cores) suits heads of 16
channels and more in half precision. They lay a query's statistics out differently, so a call is of one family.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..geometry import window_padding
from ._local_triton_backward import backward_key_value_kernel, backward_query_kernel
from ._local_triton_dense import (
    dense_backward_key_value_kernel,
    dense_backward_query_kernel,
    dense_forward_kernel,
)
from ._local_triton_forward import forward_kernel
from ._local_triton_table import table_gradient_kernel, table_kernel
from .sizes import ceil_div, next_power_of_2

VECTOR_BYTES = 16
PROGRAMS_WANTED = 528  # four for each multiprocessor of a large device
SLOTS = 8  # threads that share a pixel: 8 × 16 bytes are one cache line
TERM_PARTS = {torch.bfloat16: 1, torch.float16: 2}  # float16 numbers that keep a position term to the type's precision


@dataclass(frozen=True)
class Threads:
    """A program's tile is `rows` × (`groups` · `cols`) pixels, `cols` of them in one thread."""

    rows: int
    groups: int
    cols: int
    max_registers: int | None = None


@dataclass(frozen=True)
class Dense:
    """A program's tile is `rows` × `cols` pixels of one head, against `step` rows of its halo at a time."""

    rows: int
    cols: int
    step: int
    max_registers: int | None = None


Tiling = Threads | Dense


@dataclass(frozen=True)
class Tilings:
    """The tiling of each of the three kernels, all of one family."""

    forward: Tiling
    backward_query: Tiling
    backward_key_value: Tiling


@dataclass(frozen=True)
class Layout:
    """How heads and channels spread over threads, and hence how many copies of a query's statistics are kept."""

    vector: int  # channels of a thread
    padded_dim: int
    heads: int  # of a program
    slots: int  # of a pixel

    @classmethod
    def of(cls, projected: Tensor) -> "Layout":
        num_heads, head_dim = projected.shape[-2:]
        vector = VECTOR_BYTES // projected.element_size()
        padded_dim = max(vector, next_power_of_2(head_dim))
        heads = max(1, min(SLOTS * vector // padded_dim, next_power_of_2(num_heads)))
        return cls(vector, padded_dim, heads, ceil_div(num_heads, heads) * heads * padded_dim // vector)


def parts(projected: Tensor) -> dict[str, Tensor]:
    """Query, value and key of a projection [B, H, W, 2 or 3, n, d]; where there is no key, no kernel reads it."""
    query, value, *key = projected.unbind(3)
    return {"query": query, "value": value, "key": key[0] if key else value}


def _in_words(tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """The contiguous bfloat16 tensors as 32-bit words of two channels, or None where one of them does not allow it."""
    for tensor in tensors.values():
        if tensor.dtype != torch.bfloat16 or tensor.shape[-1] % 2 or tensor.storage_offset() % 2:
            return None
    return {name: tensor.view(torch.int32) for name, tensor in tensors.items()}


def _compile_options(tiling: Tiling) -> dict[str, int]:
    return {} if tiling.max_registers is None else {"maxnreg": tiling.max_registers}


def _launch_threads(
    kernel: Any, tiling: Threads, inputs: dict[str, Tensor], others: dict[str, Tensor], kernel_size: int, **flags: int
) -> None:
    projected = inputs["projected"]
    batch, height, width, num_parts, num_heads, head_dim = projected.shape
    layout = Layout.of(projected)
    tile_rows = ceil_div(height, tiling.rows)
    tile_cols = ceil_div(width, tiling.groups * tiling.cols)
    head_blocks = ceil_div(num_heads, layout.heads)
    words = _in_words(inputs)
    readable = dict(inputs if words is None else words)
    projected = readable.pop("projected")
    threads = tiling.rows * tiling.groups * layout.heads * layout.padded_dim // layout.vector
    kernel[(tile_cols * head_blocks, tile_rows, batch)](
        **parts(projected), **readable, **others,
        height=height, width=width, num_heads=num_heads, head_blocks=head_blocks,
        PIXEL=projected.stride(2), K=kernel_size, BEFORE=window_padding(kernel_size)[0],
        HEAD_DIM=head_dim, D=layout.padded_dim, HEADS=layout.heads, VEC=layout.vector,
        FULL=layout.padded_dim == head_dim and num_heads % layout.heads == 0, PACK=1 if words is None else 2,
        ROWS=tiling.rows, GROUPS=tiling.groups, COLS=tiling.cols, HAS_KEY=num_parts == 3,
        num_warps=max(1, threads // 32), **flags, **_compile_options(tiling),
    )  # fmt: skip


def halo_sides(tiling: Dense, kernel_size: int) -> tuple[int, int]:
    """Rows and columns of keys that a dense tile meets: whole steps of rows, and a power of two of columns."""
    rows = ceil_div(tiling.rows + kernel_size - 1, tiling.step) * tiling.step
    return rows, next_power_of_2(tiling.cols + kernel_size - 1)


def _table_entries(kernel_size: int) -> int:
    """Row and column offsets of a window, rounded up to a power of two that a tensor core's tile can hold."""
    return max(16, 2 * next_power_of_2(kernel_size))


def _launch_dense(
    kernel: Any, tiling: Dense, inputs: dict[str, Tensor], others: dict[str, Tensor], kernel_size: int, **flags: int
) -> None:
    readable = dict(inputs)
    projected = readable.pop("projected")
    batch, height, width, num_parts, num_heads, head_dim = projected.shape
    tile_rows = ceil_div(height, tiling.rows)
    tile_cols = ceil_div(width, tiling.cols)
    halo_rows, halo_cols = halo_sides(tiling, kernel_size)
    kernel[(tile_cols * num_heads, tile_rows, batch)](
        **parts(projected), **readable, **others,
        height=height, width=width, num_heads=num_heads, K=kernel_size, BEFORE=window_padding(kernel_size)[0],
        HEAD_DIM=head_dim, D=max(16, next_power_of_2(head_dim)),
        ROWS=tiling.rows, COLS=tiling.cols, HALO_ROWS=halo_rows, HALO_COLS=halo_cols, STEP=tiling.step,
        ENTRIES=_table_entries(kernel_size), TERM_PARTS=TERM_PARTS[projected.dtype], HAS_KEY=num_parts == 3,
        num_warps=1, num_stages=2, **flags, **_compile_options(tiling),
    )  # fmt: skip


def launch_forward(
    tiling: Tiling, inputs: dict[str, Tensor], others: dict[str, Tensor], kernel_size: int, **flags: int
) -> None:
    """Fills `output` and, with SAVE_LSE, `lse`."""
    if isinstance(tiling, Dense):
        _launch_dense(dense_forward_kernel, tiling, inputs, others, kernel_size, **flags)
    else:
        _launch_threads(forward_kernel, tiling, inputs, others, kernel_size, **flags)


def make_table(row_embedding: Tensor, col_embedding: Tensor, num_heads: int) -> Tensor:
    """Two [g, k, d/2] embeddings as one float32 table [2k, n, d]: concat(r_row, 0) above concat(0, r_col)."""
    sets, kernel_size, half = row_embedding.shape
    row_embedding, col_embedding = row_embedding.contiguous(), col_embedding.contiguous()
    shape = (2 * kernel_size, num_heads, 2 * half)
    table = torch.empty(shape, dtype=torch.float32, device=row_embedding.device)
    stride = 0 if sets == 1 else kernel_size * half
    table_kernel[(2 * kernel_size,)](
        row_embedding, col_embedding, table, stride, stride, num_heads,
        K=kernel_size, HEAD_DIM=2 * half, BLOCK=next_power_of_2(num_heads * 2 * half),
    )  # fmt: skip
    return table


def launch_backward(
    tilings: Tilings, inputs: dict[str, Tensor], others: dict[str, Tensor], kernel_size: int, **flags: int
) -> Tensor:
    """Fills `grad_query`, `grad_key` and `grad_value`; returns each query's ∂logits summed by row and column offset.

    The sums are interleaved, [B, H, W, n, entries]. The queries' kernel leaves behind what the keys' kernel reads.
    """
    projected = inputs["projected"]
    batch, height, width, _, num_heads, _ = projected.shape
    entries = _table_entries(kernel_size)
    shape = (batch, height, width, num_heads, entries) if flags["HAS_POSITION"] else (0,)
    sums = torch.empty(shape, dtype=projected.dtype, device=projected.device)
    by_queries, by_keys = tilings.backward_query, tilings.backward_key_value
    shared = {"lse": others["lse"], "delta": torch.empty_like(others["lse"])}
    for_queries = {"table": others["table"], "grad_query": others["grad_query"], "sums": sums}
    for_keys = {"grad_key": others["grad_key"], "grad_value": others["grad_value"]}
    reading = {**inputs, "output": others["output"]}
    if isinstance(by_queries, Dense) and isinstance(by_keys, Dense):
        terms_shape = (batch, num_heads, height, width, TERM_PARTS[projected.dtype], entries)
        shared["terms"] = sums.new_empty(terms_shape if flags["HAS_POSITION"] else (0,), dtype=torch.float16)
        _launch_dense(
            dense_backward_query_kernel, by_queries, reading, {**shared, **for_queries}, kernel_size,
            ROW_SUMS=max(8, next_power_of_2(halo_sides(by_queries, kernel_size)[0])), **flags,
        )  # fmt: skip
        _launch_dense(
            dense_backward_key_value_kernel, by_keys, inputs, {**shared, **for_keys}, kernel_size,
            HAS_POSITION=flags["HAS_POSITION"],
        )  # fmt: skip
    elif isinstance(by_queries, Threads) and isinstance(by_keys, Threads):
        _launch_threads(
            backward_query_kernel, by_queries, reading, {**shared, **for_queries}, kernel_size,
            LOG_ENTRIES=entries.bit_length() - 1, **flags,
        )  # fmt: skip
        _launch_threads(
            backward_key_value_kernel, by_keys, inputs, {**shared, **for_keys, "table": others["table"]}, kernel_size,
            HAS_POSITION=flags["HAS_POSITION"],
        )  # fmt: skip
    return sums


def embedding_gradients(projected: Tensor, sums: Tensor, kernel_size: int, sets: int) -> tuple[Tensor, Tensor]:
    """Σ over pixels of sums ⊗ q, with sums [B, H, W, n, entries]: ∂row and ∂col embeddings [g, k, d/2]."""
    num_heads, head_dim = projected.shape[-2:]
    pixels = projected.shape[:3].numel()
    layout, entries = Layout.of(projected), sums.shape[-1]
    heads = max(layout.heads, 16 // layout.padded_dim)
    blocks = ceil_div(num_heads, heads)
    depth = 64
    shares = max(1, min(ceil_div(pixels, 2 * depth), PROGRAMS_WANTED // blocks))
    chunk = ceil_div(ceil_div(pixels, shares), depth) * depth
    shares = ceil_div(pixels, chunk)
    shape = (shares, blocks, heads, entries, heads, layout.padded_dim)
    partial = torch.empty(shape, dtype=torch.float32, device=projected.device)
    table_gradient_kernel[(shares, blocks)](
        parts(projected)["query"], sums, partial, projected.stride(2), num_heads, pixels, chunk,
        HEAD_DIM=head_dim, D=layout.padded_dim, HEADS=heads, ENTRIES=entries, DEPTH=depth,
        EXACT=projected.dtype == torch.float32, num_warps=4,
    )  # fmt: skip
    by_block = partial.diagonal(dim1=2, dim2=4)  # [shares, blocks, entries, d, heads]
    if sets == 1:
        by_head = by_block.sum(dim=(0, 1, 4)).unsqueeze(0)
    else:
        by_head = by_block.sum(dim=0).permute(0, 3, 1, 2).flatten(0, 1)[:num_heads]
    half = head_dim // 2
    return by_head[:, 0 : 2 * kernel_size : 2, :half], by_head[:, 1 : 2 * kernel_size : 2, half:head_dim]
