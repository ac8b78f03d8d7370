"""Launches of the two families of Triton kernels for local attention, and the choice between them.

`Threads` (a thread for each query and head) suits thin heads and any type; `Dense` (tensor cores) suits heads of 16
channels and more in half precision. They lay a query's statistics out differently, so a call is of one family.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...geometry import window_padding
from ..sizes import PROGRAMS_WANTED, ceil_div, next_power_of_2
from ..triton_launch import wrap_triton
from .dense import dense_forward_kernel
from .dense_backward import dense_backward_key_value_kernel, dense_backward_query_kernel
from .table_kernels import embedding_gradient_kernel, table_gradient_kernel, table_kernel
from .threads import forward_kernel
from .threads_backward import backward_key_value_kernel, backward_query_kernel

VECTOR_BYTES = 16
READ_BY_THREADS = ("projected", "output", "grad_output")  # in words, where possible; the forward kernel writes output
SLOTS = 8  # threads that share a pixel: 8 × 16 bytes are one cache line
SUMMED_AT_ONCE = 2048  # numbers of an embedding's gradient
TERM_PARTS = {torch.bfloat16: 1, torch.float16: 2}  # float16 numbers that keep a position term to the type's precision


@dataclass(frozen=True)
class Threads:
    """A program's tile is `rows` × `cols` pixels, a row of them in one thread."""

    rows: int
    cols: int
    max_registers: int | None = None


@dataclass(frozen=True)
class Dense:
    """A program's tile is `rows` × `cols` pixels of one head, against `step` rows of its halo at a time.

    Of these steps `stages` are under way at once: the one computed, and those whose keys are being read.
    """

    rows: int
    cols: int
    step: int
    stages: int = 2
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
        *_, num_heads, head_dim = sizes_of(projected)
        vector = VECTOR_BYTES // projected.element_size()
        padded_dim = max(vector, next_power_of_2(head_dim))
        heads = max(1, min(SLOTS * vector // padded_dim, next_power_of_2(num_heads)))
        return cls(vector, padded_dim, heads, ceil_div(num_heads, heads) * heads * padded_dim // vector)


def sizes_of(projected: Tensor) -> tuple[int, ...]:
    """Its shape [B, H, W, 2 or 3, n, d]. Under torch.compile pixels may stay symbolic: nothing is compiled for them."""
    return (*projected.shape[:3], *map(int, projected.shape[3:]))


def _channels_in_a_word(*tensors: Tensor) -> int:
    """2 where the kernels can read these contiguous tensors as 32-bit words of two bfloat16 channels, or 1.

    They must be aligned as inductor looks at it: what it compiled for aligned inputs it gives aligned copies of others.
    """
    vector = VECTOR_BYTES // 2
    paired = all(x.dtype == torch.bfloat16 and x.shape[-1] % 2 == 0 == x.storage_offset() % vector for x in tensors)
    return 2 if paired else 1


def _compile_options(tiling: Tiling) -> dict[str, int]:
    return {} if tiling.max_registers is None else {"maxnreg": tiling.max_registers}


def _launch_threads(kernel: Any, tiling: Threads, tensors: dict[str, Tensor], kernel_size: int, **flags: int) -> None:
    projected = tensors["projected"]
    batch, height, width, num_parts, num_heads, head_dim = sizes_of(projected)
    layout = Layout.of(projected)
    tile_rows = ceil_div(height, tiling.rows)
    tile_cols = ceil_div(width, tiling.cols)
    head_blocks = ceil_div(num_heads, layout.heads)
    pack = _channels_in_a_word(*(tensors[name] for name in READ_BY_THREADS if name in tensors))
    threads = tiling.rows * layout.heads * layout.padded_dim // layout.vector
    kernel[(tile_cols * head_blocks, tile_rows, batch)](
        **tensors, height=height, width=width, num_heads=num_heads, head_blocks=head_blocks,
        PIXEL=num_parts * num_heads * head_dim // pack, K=kernel_size, BEFORE=window_padding(kernel_size)[0],
        HEAD_DIM=head_dim, D=layout.padded_dim, HEADS=layout.heads, VEC=layout.vector,
        FULL=layout.padded_dim == head_dim and num_heads % layout.heads == 0, PACK=pack,
        P=tiling.rows, COLS=tiling.cols, HAS_KEY=num_parts == 3,
        num_warps=max(1, threads // 32), **flags, **_compile_options(tiling),
    )  # fmt: skip


def halo_sides(tiling: Dense, kernel_size: int) -> tuple[int, int]:
    """Rows and columns of keys that a dense tile meets: whole steps of rows, and a power of two of columns."""
    rows = ceil_div(tiling.rows + kernel_size - 1, tiling.step) * tiling.step
    return rows, next_power_of_2(tiling.cols + kernel_size - 1)


def _table_entries(kernel_size: int) -> int:
    """Row and column offsets of a window, rounded up to a power of two that a tensor core's tile can hold."""
    return max(16, 2 * next_power_of_2(kernel_size))


def _launch_dense(kernel: Any, tiling: Dense, tensors: dict[str, Tensor], kernel_size: int, **flags: int) -> None:
    projected = tensors["projected"]
    batch, height, width, num_parts, num_heads, head_dim = sizes_of(projected)
    tile_rows = ceil_div(height, tiling.rows)
    tile_cols = ceil_div(width, tiling.cols)
    halo_rows, halo_cols = halo_sides(tiling, kernel_size)
    kernel[(tile_cols * num_heads, tile_rows, batch)](
        **tensors, height=height, width=width, num_heads=num_heads,
        K=kernel_size, BEFORE=window_padding(kernel_size)[0],
        HEAD_DIM=head_dim, D=max(16, next_power_of_2(head_dim)),
        ROWS=tiling.rows, COLS=tiling.cols, HALO_ROWS=halo_rows, HALO_COLS=halo_cols, STEP=tiling.step,
        ENTRIES=_table_entries(kernel_size), TERM_PARTS=TERM_PARTS[projected.dtype], HAS_KEY=num_parts == 3,
        num_warps=1, num_stages=tiling.stages, **flags, **_compile_options(tiling),
    )  # fmt: skip


def launch_forward(tiling: Tiling, tensors: dict[str, Tensor], kernel_size: int, **flags: int) -> None:
    """Fills `output` and, with SAVE_LSE, `lse`."""
    if isinstance(tiling, Dense):
        _launch_dense(wrap_triton(dense_forward_kernel), tiling, tensors, kernel_size, **flags)
    else:
        _launch_threads(wrap_triton(forward_kernel), tiling, tensors, kernel_size, **flags)


def make_table(projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None) -> Tensor:
    """Two [g, k, d/2] embeddings as one float32 table [2k, n, d]: concat(r_row, 0) above concat(0, r_col).

    Without embeddings no kernel looks at it, and the projection stands there.
    """
    if row_embedding is None or col_embedding is None:
        return projected
    num_heads = sizes_of(projected)[4]
    sets, kernel_size, half = row_embedding.shape
    row_embedding, col_embedding = row_embedding.contiguous(), col_embedding.contiguous()
    shape = (2 * kernel_size, num_heads, 2 * half)
    table = torch.empty(shape, dtype=torch.float32, device=row_embedding.device)
    stride = 0 if sets == 1 else kernel_size * half
    wrap_triton(table_kernel)[(2 * kernel_size,)](
        row_embedding, col_embedding, table, stride, stride, num_heads,
        K=kernel_size, HEAD_DIM=2 * half, BLOCK=next_power_of_2(num_heads * 2 * half),
    )  # fmt: skip
    return table


def launch_backward(tilings: Tilings, tensors: dict[str, Tensor], kernel_size: int, **flags: int) -> Tensor:
    """Fills `grad_projected`; returns each query's ∂logits summed by row and column offset.

    The sums are interleaved, [B, H, W, n, entries]. The queries' kernel leaves behind what the keys' kernel reads.
    """
    projected, lse = tensors["projected"], tensors["lse"]
    has_position = flags["HAS_POSITION"]
    batch, height, width, _, num_heads, _ = sizes_of(projected)
    entries = _table_entries(kernel_size)
    sums = projected.new_empty((batch, height, width, num_heads, entries) if has_position else (0,))
    by_queries, by_keys = tilings.backward_query, tilings.backward_key_value
    tensors = {**tensors, "delta": torch.empty_like(lse)}
    if isinstance(by_queries, Dense) and isinstance(by_keys, Dense):
        terms_shape = (batch, num_heads, height, width, TERM_PARTS[projected.dtype], entries)
        tensors["terms"] = sums.new_empty(terms_shape if has_position else (0,), dtype=torch.float16)
        _launch_dense(
            wrap_triton(dense_backward_query_kernel), by_queries, {**tensors, "sums": sums}, kernel_size,
            ROW_SUMS=max(8, next_power_of_2(halo_sides(by_queries, kernel_size)[0])), **flags,
        )  # fmt: skip
        for_keys = {name: x for name, x in tensors.items() if name not in ("output", "table")}
        _launch_dense(
            wrap_triton(dense_backward_key_value_kernel), by_keys, for_keys, kernel_size, HAS_POSITION=has_position
        )
    elif isinstance(by_queries, Threads) and isinstance(by_keys, Threads):
        _launch_threads(
            wrap_triton(backward_query_kernel), by_queries, {**tensors, "sums": sums}, kernel_size,
            LOG_ENTRIES=entries.bit_length() - 1, **flags,
        )  # fmt: skip
        for_keys = {name: x for name, x in tensors.items() if name != "output"}
        _launch_threads(
            wrap_triton(backward_key_value_kernel), by_keys, for_keys, kernel_size, HAS_POSITION=has_position
        )
    return sums


def embedding_gradients(
    projected: Tensor, sums: Tensor, row_embedding: Tensor, col_embedding: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ over pixels of sums ⊗ q, with sums [B, H, W, n, entries]: ∂row and ∂col embeddings [g, k, d/2]."""
    batch, height, width, num_parts, num_heads, head_dim = sizes_of(projected)
    sets, kernel_size, half = map(int, row_embedding.shape)
    pixels = batch * height * width
    layout, entries = Layout.of(projected), sums.shape[-1]
    heads = max(layout.heads, 16 // layout.padded_dim)
    blocks = ceil_div(num_heads, heads)
    depth = 64
    # Pixels may be symbolic under torch.compile, which would compile for either outcome of `min`.
    shares: Any = torch.sym_min(ceil_div(pixels, 2 * depth), max(1, PROGRAMS_WANTED // blocks))
    chunk = ceil_div(ceil_div(pixels, shares), depth) * depth  # of pixels; for the last shares there may be none
    partial = projected.new_empty((shares, blocks * heads, entries, layout.padded_dim), dtype=torch.float32)
    wrap_triton(table_gradient_kernel)[(shares, blocks)](
        projected, sums, partial, num_parts * num_heads * head_dim, num_heads, pixels, chunk,
        HEAD_DIM=head_dim, D=layout.padded_dim, HEADS=heads, ENTRIES=entries, DEPTH=depth,
        EXACT=projected.dtype == torch.float32, num_warps=4,
    )  # fmt: skip
    grad_row, grad_col = (x.new_empty(x.shape) for x in (row_embedding, col_embedding))
    channels = next_power_of_2(half)
    wrap_triton(embedding_gradient_kernel)[(2 * kernel_size, sets)](
        partial, grad_row, grad_col, shares, num_heads, blocks * heads,
        K=kernel_size, HEAD_DIM=head_dim, D=layout.padded_dim, ENTRIES=entries,
        ONE_SET=sets == 1, LINES=SUMMED_AT_ONCE // channels, CHANNELS=channels, num_warps=4,
    )  # fmt: skip
    return grad_row, grad_col
