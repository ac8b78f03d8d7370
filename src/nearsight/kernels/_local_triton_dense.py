# mypy: ignore-errors
"""Local attention by tensor cores, for heads of 16 channels and more: a small tile of queries against its halo.

A tile of M = ROWS × COLS = 16 queries (2 × 8 for k = 7) sees HALO_ROWS × HALO_COLS keys (8 × 16, of which 8 × 14
count). One warp walks the halo, STEP rows of keys at a time. Of the 128 keys a query uses 49; the rest carry −∞ through
the position terms, one for the row and one for the column:

    logit[i, (a, b)] = q_i · k_ab + R[i, a] + C[i, b],   R[i, a] = q_i · r_{a − row(i)}  (−∞ outside the window)

R and C come from one small product q·table, shifted by each query's place in the tile. The table [2k, heads, d] is that
of `_local_triton_shared`, read here with rows and columns interleaved: 2t is row offset t, 2t + 1 column offset t.
"""

import triton
import triton.language as tl

from ._local_triton_shared import LOG2_E, LOWEST


@triton.jit
def _place(num_heads):
    """Image, head and tile of this program; neighbours in the grid read the same cache lines."""
    tile_col = tl.program_id(0) // num_heads
    return tl.program_id(2).to(tl.int64), tl.program_id(0) % num_heads, tl.program_id(1), tile_col


@triton.jit
def _table(table, head, num_heads, K: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ENTRIES: tl.constexpr):
    """The embeddings of one head, [ENTRIES, D] in float32, rows and columns interleaved, zeros beyond entry 2k."""
    entry = tl.arange(0, ENTRIES)[:, None]
    channel = tl.arange(0, D)[None, :]
    offset = ((entry % 2) * K + entry // 2) * num_heads * HEAD_DIM + head * HEAD_DIM + channel
    return tl.load(table + offset, mask=(entry // 2 < K) & (channel < HEAD_DIM), other=0.0)


@triton.jit
def _by_offset(query, embeddings, M: tl.constexpr, ENTRIES: tl.constexpr):
    """q·r of every row offset and of every column offset, two [M, ENTRIES / 2] in base 2.

    The embeddings enter as sums of two half-precision numbers, whose products with q are exact to float32's eyes.
    """
    coarse = embeddings.to(query.dtype)
    fine = (embeddings - coarse.to(tl.float32)).to(query.dtype)
    products = tl.dot(query, tl.trans(coarse))
    products = tl.dot(query, tl.trans(fine), products) * LOG2_E
    return tl.split(tl.reshape(products, [M, ENTRIES // 2, 2]))


@triton.jit
def _shifted(by_offset, offset, inside, K: tl.constexpr, HALF: tl.constexpr):
    """by_offset[i, offset[i, a]] where 0 ≤ offset < k and the place is `inside`, −∞ elsewhere."""
    terms = tl.gather(by_offset, tl.minimum(tl.maximum(offset, 0), HALF - 1), 1)
    return tl.where((offset >= 0) & (offset < K) & inside, terms, float("-inf"))


@triton.jit
def dense_forward_kernel(
    query, key, value, table, output, lse,
    height, width, num_heads, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ENTRIES: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs of one head, and the base-2 log-sum-exp of its logits (COPIES times, as others read it)."""
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = STEP * HALO_COLS
    image, head, tile_row, tile_col = _place(num_heads)
    first_row = tile_row * ROWS
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    row = first_row + place // COLS
    col = first_col + place % COLS
    inside = (row < height) & (col < width)
    pixel = row * width + col
    area = image * height * width
    pixel_step = (2 + HAS_KEY) * num_heads * HEAD_DIM
    query += area * pixel_step + head * HEAD_DIM + (pixel * pixel_step + channel)
    queries = tl.load(query, mask=inside & (channel < HEAD_DIM), other=0.0)

    by_row = tl.zeros([M, ENTRIES // 2], tl.float32)
    by_col = tl.zeros([M, ENTRIES // 2], tl.float32)
    if HAS_POSITION:
        embeddings = _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = _by_offset(queries, embeddings, M, ENTRIES)
    halo_col = tl.arange(0, HALO_COLS)[None, :]
    halo_row = tl.arange(0, STEP)[None, :]
    at_col = first_col - BEFORE + halo_col
    col_inside = (at_col >= 0) & (at_col < width) if MASK else at_col > -K
    col_terms = _shifted(by_col, halo_col - place % COLS, col_inside, K, ENTRIES // 2)

    halo = tl.arange(0, N)[:, None]
    key_at_col = first_col - BEFORE + halo % HALO_COLS
    key_at_row = first_row - BEFORE + halo // HALO_COLS
    readable = (key_at_col >= 0) & (key_at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    at_key = area * pixel_step + head * HEAD_DIM + ((key_at_row * width + key_at_col) * pixel_step + channel)
    key += at_key
    value += at_key

    top = tl.full([M], LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    result = tl.zeros([M, D], tl.float32)
    for start in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row + start >= 0) & (key_at_row + start < height)
        at_row = first_row - BEFORE + start + halo_row
        row_inside = (at_row >= 0) & (at_row < height) if MASK else at_row > -K
        row_terms = _shifted(by_row, start + halo_row - place // COLS, row_inside, K, ENTRIES // 2)
        logits = row_terms[:, :, None] + col_terms[:, None, :]
        if HAS_KEY:
            keys = tl.load(key + start * width * pixel_step, mask=mask, other=0.0)
            logits += tl.reshape(tl.dot(queries, tl.trans(keys)), [M, STEP, HALO_COLS]) * LOG2_E
        logits = tl.reshape(logits, [M, N])
        values = tl.load(value + start * width * pixel_step, mask=mask, other=0.0)
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        rescale = tl.exp2(top - new_top)
        weights = tl.exp2(logits - new_top[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        result = tl.dot(weights.to(values.dtype), values, result * rescale[:, None])
        top = new_top

    at = output + area * (num_heads * HEAD_DIM) + (pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel)
    tl.store(at, (result / total[:, None]).to(output.dtype.element_ty), inside & (channel < HEAD_DIM))
    if SAVE_LSE:
        copy = tl.arange(0, COPIES)[None, :]
        stat = tl.broadcast_to((top + tl.log2(total))[:, None], [M, COPIES])
        tl.store(lse + area * stat_width + (pixel * stat_width + head * COPIES + copy), stat, inside)


@triton.jit
def dense_backward_query_kernel(
    query, key, value, table, output, lse, grad_output, grad_query, delta, sums,
    height, width, num_heads, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ENTRIES: tl.constexpr, HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """∂query, δ, and the sums of each query's ∂logits by row and column offset, [B, H, W, n, ENTRIES] interleaved."""
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = STEP * HALO_COLS
    HALF: tl.constexpr = ENTRIES // 2
    image, head, tile_row, tile_col = _place(num_heads)
    first_row = tile_row * ROWS
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    row = first_row + place // COLS
    col = first_col + place % COLS
    inside = (row < height) & (col < width)
    known = inside & (channel < HEAD_DIM)
    pixel = row * width + col
    area = image * height * width
    at = pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel
    grad_output += area * (num_heads * HEAD_DIM)
    output += area * (num_heads * HEAD_DIM)
    lse += area * stat_width
    delta += area * stat_width
    sums += area * (num_heads * ENTRIES)
    pixel_step = (2 + HAS_KEY) * num_heads * HEAD_DIM
    at_query = area * pixel_step + head * HEAD_DIM + (pixel * pixel_step + channel)
    queries = tl.load(query + at_query, mask=known, other=0.0)
    grads = tl.load(grad_output + at, mask=known, other=0.0)
    outputs = tl.load(output + at, mask=known, other=0.0)
    query_delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), axis=1)
    at_stat = pixel * stat_width + head * COPIES
    copy = tl.arange(0, COPIES)[None, :]
    tl.store(delta + at_stat + copy, tl.broadcast_to(query_delta[:, None], [M, COPIES]), inside)
    # Queries beyond the image read +∞, which makes all their weights exactly zero.
    log_sum = tl.load(lse + at_stat, mask=inside, other=float("inf"))

    by_row = tl.zeros([M, HALF], tl.float32)
    by_col = tl.zeros([M, HALF], tl.float32)
    embeddings = tl.zeros([ENTRIES, D], tl.float32)
    if HAS_POSITION:
        embeddings += _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = _by_offset(queries, embeddings, M, ENTRIES)
    halo_col = tl.arange(0, HALO_COLS)[None, :]
    halo_row = tl.arange(0, STEP)[None, :]
    at_col = first_col - BEFORE + halo_col
    col_inside = (at_col >= 0) & (at_col < width) if MASK else at_col > -K
    col_terms = _shifted(by_col, halo_col - place % COLS, col_inside, K, HALF) - log_sum

    halo = tl.arange(0, N)[:, None]
    key_at_col = first_col - BEFORE + halo % HALO_COLS
    key_at_row = first_row - BEFORE + halo // HALO_COLS
    readable = (key_at_col >= 0) & (key_at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    at_key = area * pixel_step + head * HEAD_DIM + ((key_at_row * width + key_at_col) * pixel_step + channel)
    key += at_key
    value += at_key

    offset = tl.arange(0, HALF)[None, :]
    result = tl.zeros([M, D], tl.float32)
    row_sums = tl.zeros([M, HALF], tl.float32)
    col_sums = tl.zeros([M, HALO_COLS], tl.float32)
    for start in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row + start >= 0) & (key_at_row + start < height)
        at_row = first_row - BEFORE + start + halo_row
        row_inside = (at_row >= 0) & (at_row < height) if MASK else at_row > -K
        row_terms = _shifted(by_row, start + halo_row - place // COLS, row_inside, K, HALF)
        logits = row_terms[:, :, None] + col_terms[:, None, :]
        if HAS_KEY:
            keys = tl.load(key + start * width * pixel_step, mask=mask, other=0.0)
            logits += tl.reshape(tl.dot(queries, tl.trans(keys)), [M, STEP, HALO_COLS]) * LOG2_E
        values = tl.load(value + start * width * pixel_step, mask=mask, other=0.0)
        grad_weights = tl.reshape(tl.dot(grads, tl.trans(values)), [M, STEP, HALO_COLS])
        grad_logits = tl.exp2(logits) * (grad_weights - query_delta[:, None, None])
        if HAS_KEY:
            result = tl.dot(tl.reshape(grad_logits, [M, N]).to(keys.dtype), keys, result)
        if HAS_POSITION:
            col_sums += tl.sum(grad_logits, axis=1)
            seen_at = offset + place // COLS - start
            from_rows = tl.gather(tl.sum(grad_logits, axis=2), tl.minimum(tl.maximum(seen_at, 0), STEP - 1), 1)
            row_sums += tl.where((seen_at >= 0) & (seen_at < STEP) & (offset < K), from_rows, 0.0)

    if HAS_POSITION:
        from_cols = tl.gather(col_sums, tl.minimum(offset + place % COLS, HALO_COLS - 1), 1)
        by_entry = tl.reshape(tl.join(row_sums, tl.where(offset < K, from_cols, 0.0)), [M, ENTRIES])
        result = tl.dot(by_entry, embeddings, result)
        entry = tl.arange(0, ENTRIES)[None, :]
        tl.store(sums + (pixel * num_heads + head) * ENTRIES + entry, by_entry.to(sums.dtype.element_ty), inside)
    tl.store(grad_query + at_query, result.to(grad_query.dtype.element_ty), known)


@triton.jit
def dense_backward_key_value_kernel(
    query, key, value, table, lse, delta, grad_output, grad_key, grad_value,
    height, width, num_heads, stat_width,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, COPIES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ENTRIES: tl.constexpr, HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value of one tile of keys, from the halo of queries that see them; logits are transposed, [M, N].

    Key (a, b) is seen at window place (t, u) by query (a − t + BEFORE, b − u + BEFORE).
    """
    M: tl.constexpr = ROWS * COLS
    N: tl.constexpr = STEP * HALO_COLS
    HALF: tl.constexpr = ENTRIES // 2
    AFTER: tl.constexpr = K - 1 - BEFORE
    image, head, tile_row, tile_col = _place(num_heads)
    first_row = tile_row * ROWS
    first_col = tile_col * COLS
    channel = tl.arange(0, D)[None, :]
    place = tl.arange(0, M)[:, None]
    row = first_row + place // COLS
    col = first_col + place % COLS
    known = (row < height) & (col < width) & (channel < HEAD_DIM)
    area = image * height * width
    pixel_step = (2 + HAS_KEY) * num_heads * HEAD_DIM
    at_key = area * pixel_step + head * HEAD_DIM + ((row * width + col) * pixel_step + channel)
    values = tl.load(value + at_key, mask=known, other=0.0)
    keys = values
    if HAS_KEY:
        keys = tl.load(key + at_key, mask=known, other=0.0)

    # As in `_by_offset`, embeddings are sums of two half-precision numbers; here row offsets come first, then columns.
    coarse = tl.zeros([ENTRIES, D], values.dtype)
    fine = coarse
    if HAS_POSITION:
        entry = tl.arange(0, ENTRIES)[:, None]
        at_entry = (entry // HALF) * K + entry % HALF
        table += at_entry * num_heads * HEAD_DIM + head * HEAD_DIM + channel
        embeddings = tl.load(table, mask=(entry % HALF < K) & (channel < HEAD_DIM), other=0.0)
        coarse = embeddings.to(values.dtype)
        fine = (embeddings - coarse.to(tl.float32)).to(values.dtype)

    halo = tl.arange(0, N)[:, None]
    at_col = first_col - AFTER + halo % HALO_COLS
    at_row = first_row - AFTER + halo // HALO_COLS
    col_exists = (at_col >= 0) & (at_col < width) & (halo % HALO_COLS < COLS + K - 1)
    pixel = at_row * width + at_col
    query += area * pixel_step + head * HEAD_DIM + (pixel * pixel_step + channel)
    grad_output += area * (num_heads * HEAD_DIM) + (pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel)
    lse += area * stat_width + (pixel * stat_width + head * COPIES)
    delta += area * stat_width + (pixel * stat_width + head * COPIES)
    seen_row = place // COLS - tl.trans(halo) // HALO_COLS + K - 1
    seen_col = place % COLS - tl.trans(halo) % HALO_COLS + K - 1
    col_seen = (seen_col >= 0) & (seen_col < K)
    at_entry_col = HALF + tl.minimum(tl.maximum(seen_col, 0), HALF - 1)

    into_keys = tl.zeros([M, D], tl.float32)
    into_values = tl.zeros([M, D], tl.float32)
    for start in range(0, HALO_ROWS, STEP):
        exists = col_exists & (at_row + start >= 0) & (at_row + start < height)
        down = start * width
        queries = tl.load(query + down * pixel_step, mask=exists & (channel < HEAD_DIM), other=0.0)
        grads = tl.load(grad_output + down * (num_heads * HEAD_DIM), mask=exists & (channel < HEAD_DIM), other=0.0)
        # Queries outside the image read +∞, which makes their weights exactly zero.
        log_sum = tl.trans(tl.load(lse + down * stat_width, mask=exists, other=float("inf")))
        query_delta = tl.trans(tl.load(delta + down * stat_width, mask=exists, other=0.0))
        logits = tl.zeros([M, N], tl.float32)
        if HAS_KEY:
            logits = tl.dot(keys, tl.trans(queries))
        at_entry_row = seen_row - start
        if HAS_POSITION:
            products = tl.dot(coarse, tl.trans(queries))
            products = tl.dot(fine, tl.trans(queries), products)
            logits += tl.gather(products, tl.minimum(tl.maximum(at_entry_row, 0), HALF - 1), 0)
            logits += tl.gather(products, at_entry_col, 0)
        seen = col_seen & (at_entry_row >= 0) & (at_entry_row < K)
        weights = tl.where(seen, tl.exp2(logits * LOG2_E - log_sum), 0.0)
        into_values = tl.dot(weights.to(grads.dtype), grads, into_values)
        if HAS_KEY:
            grad_logits = weights * (tl.dot(values, tl.trans(grads)) - query_delta)
            into_keys = tl.dot(grad_logits.to(queries.dtype), queries, into_keys)

    tl.store(grad_value + at_key, into_values.to(grad_value.dtype.element_ty), known)
    if HAS_KEY:
        tl.store(grad_key + at_key, into_keys.to(grad_key.dtype.element_ty), known)
