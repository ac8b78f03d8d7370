# mypy: ignore-errors
"""Local attention by tensor cores, for heads of 16 channels and more: a small tile of queries against its whole halo.

A tile of ROWS × COLS = 16 queries (2 × 8 for k = 7) sees HALO_ROWS × HALO_COLS keys (8 × 16, of which 8 × 14 count):
all its logits are one 16 × 128 product in the registers of one warp, so that the softmax is exact and in one step. Of
these 128 keys a query uses 49; the rest carry −∞ through the position terms, one for the row and one for the column:

    logit[i, (a, b)] = q_i · k_ab + R[i, a] + C[i, b],   R[i, a] = q_i · r_{a − row(i)}  (−∞ outside the window)

R and C come from one small product q·table, shifted by each query's place in the tile. The table [2k, heads, d] is that
of `_local_triton_shared`, read here with rows and columns interleaved: 2t is row offset t, 2t + 1 column offset t.
"""

import triton
import triton.language as tl

from ._local_triton_shared import LOG2_E


@triton.jit
def _place(tile_rows, tile_cols, num_heads):
    """Image, head and tile of this program."""
    program = tl.program_id(0)
    tile_col = program % tile_cols
    program = program // tile_cols
    tile_row = program % tile_rows
    program = program // tile_rows
    return (program // num_heads).to(tl.int64), program % num_heads, tile_row, tile_col


@triton.jit
def _table(table, head, num_heads, K: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ENTRIES: tl.constexpr):
    """The embeddings of one head, [ENTRIES, D] in float32, rows and columns interleaved, zeros beyond entry 2k."""
    entry = tl.arange(0, ENTRIES)[:, None]
    channel = tl.arange(0, D)[None, :]
    offset = ((entry % 2) * K + entry // 2) * num_heads * HEAD_DIM + head * HEAD_DIM + channel
    return tl.load(table + offset, mask=(entry // 2 < K) & (channel < HEAD_DIM), other=0.0)


@triton.jit
def _position_terms(
    query, embeddings, row, col, height, width,
    K: tl.constexpr, BEFORE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, ENTRIES: tl.constexpr,
    HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """R [16, HALO_ROWS] and C [16, HALO_COLS] in base 2, −∞ outside the window and, under MASK, outside the image."""
    M: tl.constexpr = ROWS * COLS
    place = tl.arange(0, M)[:, None]
    halo_row = tl.arange(0, HALO_ROWS)[None, :]
    halo_col = tl.arange(0, HALO_COLS)[None, :]
    at_row = halo_row - place // COLS
    at_col = halo_col - place % COLS
    row_terms = tl.zeros([M, HALO_ROWS], tl.float32)
    col_terms = tl.zeros([M, HALO_COLS], tl.float32)
    if HAS_POSITION:
        products = tl.dot(query.to(tl.float32), tl.trans(embeddings)) * LOG2_E
        by_row, by_col = tl.split(tl.reshape(products, [M, ENTRIES // 2, 2]))
        row_terms = tl.gather(by_row, tl.minimum(tl.maximum(at_row, 0), ENTRIES // 2 - 1), 1)
        col_terms = tl.gather(by_col, tl.minimum(tl.maximum(at_col, 0), ENTRIES // 2 - 1), 1)
    row_counts = (at_row >= 0) & (at_row < K)
    col_counts = (at_col >= 0) & (at_col < K)
    if MASK:
        row_counts = row_counts & (row - BEFORE + halo_row >= 0) & (row - BEFORE + halo_row < height)
        col_counts = col_counts & (col - BEFORE + halo_col >= 0) & (col - BEFORE + halo_col < width)
    row_terms = tl.where(row_counts, row_terms, float("-inf"))
    col_terms = tl.where(col_counts, col_terms, float("-inf"))
    return row_terms, col_terms


@triton.jit
def dense_forward_kernel(
    query, key, value, table, output, lse,
    query_image, query_row, query_col, key_image, key_row, key_col, value_image, value_row, value_col,
    height, width, num_heads, tile_rows, tile_cols, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, ENTRIES: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs of one head, and the base-2 log-sum-exp of its logits (COPIES times, as others read it)."""
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = HALO_ROWS * HALO_COLS
    image, head, tile_row, tile_col = _place(tile_rows, tile_cols, num_heads)
    first_row = tile_row * ROWS
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    row = first_row + place // COLS
    col = first_col + place % COLS
    inside = (row < height) & (col < width)
    query += image * query_image + head * HEAD_DIM + (row * query_row + col * query_col + channel)
    queries = tl.load(query, mask=inside & (channel < HEAD_DIM), other=0.0)

    halo = tl.arange(0, N)[:, None]
    at_row = first_row - BEFORE + halo // HALO_COLS
    at_col = first_col - BEFORE + halo % HALO_COLS
    readable = (at_row >= 0) & (at_row < height) & (at_col >= 0) & (at_col < width)
    readable = readable & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    value += image * value_image + head * HEAD_DIM + (at_row * value_row + at_col * value_col + channel)
    values = tl.load(value, mask=readable, other=0.0)

    embeddings = tl.zeros([ENTRIES, D], tl.float32)
    if HAS_POSITION:
        embeddings += _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
    row_terms, col_terms = _position_terms(
        queries, embeddings, first_row, first_col, height, width,
        K, BEFORE, ROWS, COLS, HALO_ROWS, HALO_COLS, ENTRIES, HAS_POSITION, MASK,
    )  # fmt: skip
    logits = row_terms[:, :, None] + col_terms[:, None, :]
    if HAS_KEY:
        key += image * key_image + head * HEAD_DIM + (at_row * key_row + at_col * key_col + channel)
        keys = tl.load(key, mask=readable, other=0.0)
        logits += tl.reshape(tl.dot(queries, tl.trans(keys)), [M, HALO_ROWS, HALO_COLS]) * LOG2_E
    logits = tl.reshape(logits, [M, N])
    top = tl.max(logits, axis=1)
    weights = tl.exp2(logits - top[:, None])
    total = tl.sum(weights, axis=1)
    result = tl.dot(weights.to(values.dtype), values) / total[:, None]

    pixel = (image * height + row) * width + col
    at = output + pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel
    tl.store(at, result.to(output.dtype.element_ty), inside & (channel < HEAD_DIM))
    if SAVE_LSE:
        copy = tl.arange(0, COPIES)[None, :]
        stat = tl.broadcast_to((top + tl.log2(total))[:, None], [M, COPIES])
        tl.store(lse + pixel * stat_width + head * COPIES + copy, stat, inside)


@triton.jit
def dense_backward_query_kernel(
    query, key, value, table, output, lse, grad_output, grad_query, delta, grad_table,
    query_image, query_row, query_col, key_image, key_row, key_col, value_image, value_row, value_col,
    height, width, num_heads, tile_rows, tile_cols, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, ENTRIES: tl.constexpr,
    STRIPS: tl.constexpr, HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """∂query, δ and a share of ∂table for STRIPS tiles below one another; `tile_rows` counts such groups.

    `output`, `grad_output`, `grad_query` are contiguous; `grad_table` is [image, head, group, ENTRIES, D], interleaved.
    """
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = HALO_ROWS * HALO_COLS
    image, head, group, tile_col = _place(tile_rows, tile_cols, num_heads)
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    halo = tl.arange(0, N)[:, None]
    col = first_col + place % COLS
    at_col = first_col - BEFORE + halo % HALO_COLS
    query += image * query_image + head * HEAD_DIM + (col * query_col + channel)
    key += image * key_image + head * HEAD_DIM + (at_col * key_col + channel)
    value += image * value_image + head * HEAD_DIM + (at_col * value_col + channel)
    col_readable = (at_col >= 0) & (at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    embeddings = tl.zeros([ENTRIES, D], tl.float32)
    if HAS_POSITION:
        embeddings += _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)

    share = tl.zeros([ENTRIES, D], tl.float32)
    for strip in range(STRIPS):
        first_row = (group * STRIPS + strip) * ROWS
        row = first_row + place // COLS
        at_row = first_row - BEFORE + halo // HALO_COLS
        inside = (row < height) & (col < width)
        readable = col_readable & (at_row >= 0) & (at_row < height)
        pixel = (image * height + row) * width + col
        at = pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel
        at_stat = pixel * stat_width + head * COPIES

        queries = tl.load(query + row * query_row, mask=inside & (channel < HEAD_DIM), other=0.0)
        values = tl.load(value + at_row * value_row, mask=readable, other=0.0)
        grads = tl.load(grad_output + at, mask=inside & (channel < HEAD_DIM), other=0.0)
        outputs = tl.load(output + at, mask=inside & (channel < HEAD_DIM), other=0.0)
        query_delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), axis=1)
        copy = tl.arange(0, COPIES)[None, :]
        tl.store(delta + at_stat + copy, tl.broadcast_to(query_delta[:, None], [M, COPIES]), inside)
        # Queries beyond the image read +∞, which makes all their weights exactly zero.
        log_sum = tl.load(lse + at_stat, mask=inside, other=float("inf"))

        row_terms, col_terms = _position_terms(
            queries, embeddings, first_row, first_col, height, width,
            K, BEFORE, ROWS, COLS, HALO_ROWS, HALO_COLS, ENTRIES, HAS_POSITION, MASK,
        )  # fmt: skip
        logits = (row_terms - log_sum)[:, :, None] + col_terms[:, None, :]
        keys = values
        if HAS_KEY:
            keys = tl.load(key + at_row * key_row, mask=readable, other=0.0)
            logits += tl.reshape(tl.dot(queries, tl.trans(keys)), [M, HALO_ROWS, HALO_COLS]) * LOG2_E
        grad_weights = tl.reshape(tl.dot(grads, tl.trans(values)), [M, HALO_ROWS, HALO_COLS])
        grad_logits = tl.exp2(logits) * (grad_weights - query_delta[:, None, None])
        result = tl.zeros([M, D], tl.float32)
        if HAS_KEY:
            result = tl.dot(tl.reshape(grad_logits, [M, N]).to(keys.dtype), keys)
        if HAS_POSITION:
            offset = tl.arange(0, ENTRIES // 2)[None, :]
            at_halo_row = tl.minimum(offset + place // COLS, HALO_ROWS - 1)
            at_halo_col = tl.minimum(offset + place % COLS, HALO_COLS - 1)
            by_row = tl.gather(tl.sum(grad_logits, axis=2), at_halo_row, 1)
            by_col = tl.gather(tl.sum(grad_logits, axis=1), at_halo_col, 1)
            by_row = tl.where(offset < K, by_row, 0.0)
            by_col = tl.where(offset < K, by_col, 0.0)
            by_entry = tl.reshape(tl.join(by_row, by_col), [M, ENTRIES])
            result = tl.dot(by_entry, embeddings, result)
            share = tl.dot(tl.trans(by_entry), queries.to(tl.float32), share)
        tl.store(grad_query + at, result.to(grad_query.dtype.element_ty), inside & (channel < HEAD_DIM))

    if HAS_POSITION:
        entry = tl.arange(0, ENTRIES)[:, None]
        tl.store(grad_table + tl.program_id(0).to(tl.int64) * (ENTRIES * D) + entry * D + channel, share)


@triton.jit
def dense_backward_key_value_kernel(
    query, key, value, table, lse, delta, grad_output, grad_key, grad_value,
    query_image, query_row, query_col, key_image, key_row, key_col, value_image, value_row, value_col,
    height, width, num_heads, tile_rows, tile_cols, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, ENTRIES: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value of one tile of keys, from the halo of queries that see them; logits are transposed, [16, 128].

    Key (a, b) is seen at window place (t, u) by query (a − t + BEFORE, b − u + BEFORE).
    """
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = HALO_ROWS * HALO_COLS
    AFTER: tl.constexpr = K - 1 - BEFORE
    image, head, tile_row, tile_col = _place(tile_rows, tile_cols, num_heads)
    first_row = tile_row * ROWS
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    row = first_row + place // COLS
    col = first_col + place % COLS
    inside = (row < height) & (col < width) & (channel < HEAD_DIM)
    values = tl.load(
        value + image * value_image + head * HEAD_DIM + (row * value_row + col * value_col + channel), inside, other=0.0
    )

    halo = tl.arange(0, N)[:, None]
    at_row = first_row - AFTER + halo // HALO_COLS
    at_col = first_col - AFTER + halo % HALO_COLS
    exists = (at_row >= 0) & (at_row < height) & (at_col >= 0) & (at_col < width) & (halo % HALO_COLS < COLS + K - 1)
    readable = exists & (channel < HEAD_DIM)
    pixel = (image * height + at_row) * width + at_col
    query += image * query_image + head * HEAD_DIM + (at_row * query_row + at_col * query_col + channel)
    queries = tl.load(query, mask=readable, other=0.0)
    grads = tl.load(grad_output + pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel, mask=readable, other=0.0)
    at_stat = pixel * stat_width + head * COPIES
    # Queries outside the image read +∞, which makes their weights exactly zero.
    log_sum = tl.trans(tl.load(lse + at_stat, mask=exists, other=float("inf")))
    query_delta = tl.trans(tl.load(delta + at_stat, mask=exists, other=0.0))

    place_t = tl.trans(halo)
    seen_row = place // COLS - place_t // HALO_COLS + K - 1
    seen_col = place % COLS - place_t % HALO_COLS + K - 1
    seen = (seen_row >= 0) & (seen_row < K) & (seen_col >= 0) & (seen_col < K)
    logits = tl.zeros([M, N], tl.float32)
    if HAS_KEY:
        keys = tl.load(
            key + image * key_image + head * HEAD_DIM + (row * key_row + col * key_col + channel), inside, other=0.0
        )
        logits = tl.dot(keys, tl.trans(queries))
    if HAS_POSITION:
        # Embeddings as the sum of two half-precision numbers: the products are then exact to float32's eyes.
        HALF: tl.constexpr = ENTRIES // 2
        entry = tl.arange(0, HALF)[:, None]
        known = (entry < K) & (channel < HEAD_DIM)
        table += head * HEAD_DIM + entry * num_heads * HEAD_DIM + channel
        for axis in tl.static_range(2):
            embeddings = tl.load(table + axis * K * num_heads * HEAD_DIM, mask=known, other=0.0)
            coarse = embeddings.to(queries.dtype)
            fine = (embeddings - coarse.to(tl.float32)).to(queries.dtype)
            products = tl.dot(coarse, tl.trans(queries))
            products = tl.dot(fine, tl.trans(queries), products)
            index = seen_row if axis == 0 else seen_col
            logits += tl.gather(products, tl.minimum(tl.maximum(index, 0), HALF - 1), 0)
    weights = tl.where(seen, tl.exp2(logits * LOG2_E - log_sum), 0.0)
    at = ((image * height + row) * width + col) * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel
    result = tl.dot(weights.to(grads.dtype), grads)
    tl.store(grad_value + at, result.to(grad_value.dtype.element_ty), inside)
    if HAS_KEY:
        grad_logits = weights * (tl.dot(values, tl.trans(grads)) - query_delta)
        result = tl.dot(grad_logits.to(queries.dtype), queries)
        tl.store(grad_key + at, result.to(grad_key.dtype.element_ty), inside)
