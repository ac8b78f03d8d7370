# mypy: ignore-errors
"""The embeddings' table, made from row and column embeddings in one launch; its gradient is a product and a sum."""

import triton
import triton.language as tl


@triton.jit
def table_kernel(
    row_embedding, col_embedding, table, row_set, col_set, num_heads,
    K: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Entry t < k is concat(r_t, 0) of every head, k + t is concat(0, r_t); `*_set` is 0 for shared embeddings."""
    HALF: tl.constexpr = HEAD_DIM // 2
    entry = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    head = lane // HEAD_DIM
    channel = lane % HEAD_DIM
    exists = head < num_heads
    in_rows = exists & (entry < K) & (channel < HALF)
    in_cols = exists & (entry >= K) & (channel >= HALF)
    value = tl.load(row_embedding + head * row_set + entry * HALF + channel, mask=in_rows, other=0.0).to(tl.float32)
    at = head * col_set + (entry - K) * HALF + (channel - HALF)
    value += tl.load(col_embedding + at, mask=in_cols, other=0.0).to(tl.float32)
    tl.store(table + entry * num_heads * HEAD_DIM + lane, value, mask=exists)


@triton.jit
def table_gradient_kernel(
    projected, sums, partial,
    pixel_step, num_heads, pixels, chunk,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, ENTRIES: tl.constexpr, DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """A share of ∂table, [shares, blocks · HEADS, ENTRIES, D]: Σ_pixels sumsᵀ q for HEADS heads at once.

    Of the product [HEADS·ENTRIES, HEADS·D] only the diagonal blocks mean something, and are kept; the others are the
    price of whole cache lines and full tensor-core tiles.
    """
    share = tl.program_id(0)
    block = tl.program_id(1)
    lane = tl.arange(0, HEADS * D)[None, :]
    head = block * HEADS + lane // D
    channel = head * HEAD_DIM + lane % D
    channel_known = (head < num_heads) & (lane % D < HEAD_DIM)
    entry = block * HEADS * ENTRIES + tl.arange(0, HEADS * ENTRIES)[None, :]
    entry_known = entry < num_heads * ENTRIES
    result = tl.zeros([HEADS * ENTRIES, HEADS * D], tl.float32)
    for start in range(0, chunk, DEPTH):
        pixel = (share * chunk + start + tl.arange(0, DEPTH)[:, None]).to(tl.int64)
        known = pixel < pixels
        right = tl.load(projected + pixel * pixel_step + channel, mask=known & channel_known, other=0.0)
        left = tl.load(sums + pixel * (num_heads * ENTRIES) + entry, mask=known & entry_known, other=0.0)
        if EXACT:
            result = tl.dot(tl.trans(left), right, result, input_precision="ieee")
        else:
            result = tl.dot(tl.trans(left), right, result)
    rows = tl.arange(0, HEADS * ENTRIES)[:, None]
    at = (share * tl.num_programs(1) + block) * (HEADS * ENTRIES * D)
    tl.store(partial + at + rows * D + lane % D, result, rows // ENTRIES == lane // D)


@triton.jit
def embedding_gradient_kernel(
    partial, grad_row, grad_col, shares, num_heads, padded_heads,
    K: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ENTRIES: tl.constexpr,
    ONE_SET: tl.constexpr, LINES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The shares of one entry of ∂table added up, of all heads where they have ONE_SET of embeddings in common."""
    HALF: tl.constexpr = HEAD_DIM // 2
    entry = tl.program_id(0)
    own_set = tl.program_id(1)
    for_col = entry % 2
    channel = tl.arange(0, CHANNELS)
    known = channel < HALF
    lines = shares * num_heads if ONE_SET else shares
    total = tl.zeros([LINES, CHANNELS], tl.float32)
    for start in range(0, lines, LINES):
        line = start + tl.arange(0, LINES)[:, None]
        head = line // num_heads * padded_heads + line % num_heads if ONE_SET else line * padded_heads + own_set
        at = (head * ENTRIES + entry) * D + for_col * HALF + channel[None, :]
        total += tl.load(partial + at, (line < lines) & known[None, :], other=0.0)
    result = tl.sum(total, axis=0)
    at = (own_set * K + entry // 2) * HALF + channel
    tl.store(grad_row + at, result.to(grad_row.dtype.element_ty), known & (for_col == 0))
    tl.store(grad_col + at, result.to(grad_col.dtype.element_ty), known & (for_col == 1))
