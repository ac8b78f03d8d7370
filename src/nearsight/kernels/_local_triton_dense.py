# mypy: ignore-errors
"""Local attention by tensor cores, for heads of 16 channels and more: a small tile of queries against its halo.

A tile of M = ROWS × COLS = 16 queries (2 × 8 for k = 7) sees HALO_ROWS × HALO_COLS keys (8 × 16, of which 8 × 14
count). One warp walks the halo, STEP rows of keys at a time. Of the 128 keys a query uses 49; the rest carry −∞ through
the position terms, one for the row and one for the column:

    logit[i, (a, b)] = q_i · k_ab + R[i, a] + C[i, b],   R[i, a] = q_i · r_{a − row(i)}  (−∞ outside the window)

R and C come from one small product q·table, shifted by each query's place in the tile. The table [2k, heads, d] is that
of `_local_triton_shared`, read here with rows and columns interleaved: 2t is row offset t, 2t + 1 column offset t.
What can be had for nothing is: C is what the product q·k starts from, R − maximum is the addend of the one
multiply-add before the exponential, and sums over keys are products with ones.

These kernels wait for the L2 cache more than for arithmetic, so what the keys' kernel reads of every query of its halo
is kept small and dense: log-sum-exp and δ are maps of their own for each head, [B, heads, H, W], and so are the terms
R and C of a query, [B, heads, H, W, TERM_PARTS, ENTRIES] in float16: three bits more than bfloat16 has, and for
float16 itself the rest in a second part. They lie at the residue of the key's row (column) modulo ENTRIES / 2: the
keys of a tile pick theirs by a product with zeros and ones, without a shift. All three kernels count terms from the
query's highest, which the softmax does not see, and round them alike: the weights of the third are those that the
log-sum-exp was taken of.
"""

import triton
import triton.language as tl

from ._local_triton_shared import LN_2, LOG2_E, LOWEST

LOWEST_TERM = tl.constexpr(-65504.0)  # of float16


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
def _below_highest(terms, K: tl.constexpr, HALF: tl.constexpr, TERM_PARTS: tl.constexpr):
    """What terms [M, HALF] lack of their query's highest, as float16 keeps it."""
    terms = tl.where(tl.arange(0, HALF)[None, :] < K, terms, float("-inf"))
    terms = tl.maximum(terms - tl.max(terms, axis=1)[:, None], LOWEST_TERM)
    return terms.to(tl.float16).to(tl.float32) if TERM_PARTS == 1 else terms


@triton.jit
def _by_offset(query, embeddings, M: tl.constexpr, K: tl.constexpr, ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr):
    """q·r of every row offset and of every column offset, two [M, ENTRIES / 2], below their highest.

    The embeddings enter as sums of two half-precision numbers, whose products with q are exact to float32's eyes.
    """
    HALF: tl.constexpr = ENTRIES // 2
    coarse = embeddings.to(query.dtype)
    fine = (embeddings - coarse.to(tl.float32)).to(query.dtype)
    products = tl.dot(query, tl.trans(coarse))
    products = tl.dot(query, tl.trans(fine), products)
    by_row, by_col = tl.split(tl.reshape(products, [M, HALF, 2]))
    return _below_highest(by_row, K, HALF, TERM_PARTS), _below_highest(by_col, K, HALF, TERM_PARTS)


@triton.jit
def _shifted(by_offset, offset, inside, K: tl.constexpr, HALF: tl.constexpr):
    """by_offset[i, offset[i, a]] where 0 ≤ offset < k and the place is `inside`, −∞ elsewhere."""
    terms = tl.gather(by_offset, tl.minimum(tl.maximum(offset, 0), HALF - 1), 1)
    return tl.where((offset >= 0) & (offset < K) & inside, terms, float("-inf"))


@triton.jit
def _store_terms(places, terms, inside, ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr):
    coarse = terms.to(tl.float16)
    tl.store(places, coarse, inside)
    if TERM_PARTS == 2:
        tl.store(places + ENTRIES, (terms - coarse.to(tl.float32)).to(tl.float16), inside)


@triton.jit
def _over_rows(terms, M: tl.constexpr, STEP: tl.constexpr, HALO_COLS: tl.constexpr):
    """[M, HALO_COLS] for every one of STEP rows of the halo, [M, STEP · HALO_COLS]."""
    return tl.reshape(tl.broadcast_to(terms[:, None, :], [M, STEP, HALO_COLS]), [M, STEP * HALO_COLS])


@triton.jit
def dense_forward_kernel(
    projected, table, output, lse,
    height, width, num_heads: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs of one head, and the base-2 log-sum-exp of its logits."""
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
    pixel = row * width + col
    area = image * height * width
    part = num_heads * HEAD_DIM  # from query to value, and from value to key
    pixel_step = (2 + HAS_KEY) * part
    projected += area * pixel_step + head * HEAD_DIM
    queries = tl.load(projected + (pixel * pixel_step + channel), mask=inside & (channel < HEAD_DIM), other=0.0)

    by_row = tl.zeros([M, HALF], tl.float32)
    by_col = tl.zeros([M, HALF], tl.float32)
    if HAS_POSITION:
        embeddings = _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = _by_offset(queries, embeddings, M, K, ENTRIES, TERM_PARTS)
    halo_col = tl.arange(0, HALO_COLS)[None, :]
    halo_row = tl.arange(0, STEP)[None, :]
    at_col = first_col - BEFORE + halo_col
    col_inside = (at_col >= 0) & (at_col < width) if MASK else at_col > -K
    col_terms = _shifted(by_col, halo_col - place % COLS, col_inside, K, HALF)
    col_terms = _over_rows(col_terms, M, STEP, HALO_COLS)

    halo = tl.arange(0, N)[:, None]
    key_at_col = first_col - BEFORE + halo % HALO_COLS
    key_at_row = first_row - BEFORE + halo // HALO_COLS
    readable = (key_at_col >= 0) & (key_at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    first_seen = (key_at_row * width + key_at_col) * pixel_step + channel
    value = projected + part + first_seen
    key = projected + 2 * part + first_seen
    at_row = first_row - BEFORE + halo_row
    offset = halo_row - place // COLS

    ones = tl.full([N, 8], 1.0, queries.dtype)
    top = tl.full([M], LOWEST, tl.float32)
    totals = tl.zeros([M, 8], tl.float32)  # eight times the same: a product has no fewer columns
    result = tl.zeros([M, D], tl.float32)
    for _ in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row >= 0) & (key_at_row < height)
        row_inside = (at_row >= 0) & (at_row < height) if MASK else at_row > -K
        row_terms = _shifted(by_row, offset, row_inside, K, HALF) * LOG2_E
        logits = col_terms
        if HAS_KEY:
            keys = tl.load(key, mask=mask, other=0.0)
            logits = tl.dot(queries, tl.trans(keys), col_terms)
        values = tl.load(value, mask=mask, other=0.0)
        logits = tl.reshape(logits, [M, STEP, HALO_COLS])
        new_top = tl.maximum(top, tl.max(tl.max(logits, axis=2) * LOG2_E + row_terms, axis=1))
        rescale = tl.exp2(top - new_top)
        weights = tl.exp2(logits * LOG2_E + (row_terms - new_top[:, None])[:, :, None])
        weights = tl.reshape(weights, [M, N]).to(values.dtype)
        totals = tl.dot(weights, ones, totals * rescale[:, None])
        result = tl.dot(weights, values, result * rescale[:, None])
        top = new_top
        key += STEP * width * pixel_step
        value += STEP * width * pixel_step
        key_at_row += STEP
        at_row += STEP
        offset += STEP

    total = tl.max(totals, axis=1)
    at = output + area * (num_heads * HEAD_DIM) + (pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel)
    tl.store(at, (result * (1.0 / total)[:, None]).to(output.dtype.element_ty), inside & (channel < HEAD_DIM))
    if SAVE_LSE:
        lse += (image * num_heads + head) * height * width
        tl.store(lse + pixel, (top + tl.log2(total))[:, None], inside)


@triton.jit
def dense_backward_query_kernel(
    projected, table, output, lse, grad_output, grad_projected, delta, terms, sums,
    height, width, num_heads: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ROW_SUMS: tl.constexpr, ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """∂query, and each query's ∂logits summed by row and column offset, [B, H, W, n, ENTRIES] interleaved.

    For the keys' kernel also δ = Σ_d ∂out·out and the terms R and C.
    """
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
    head_map = (image * num_heads + head) * height * width
    at = pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel
    grad_output += area * (num_heads * HEAD_DIM)
    output += area * (num_heads * HEAD_DIM)
    sums += area * (num_heads * ENTRIES)
    lse += head_map
    delta += head_map
    part = num_heads * HEAD_DIM  # from query to value, and from value to key
    pixel_step = (2 + HAS_KEY) * part
    projected += area * pixel_step + head * HEAD_DIM
    grad_projected += area * pixel_step + head * HEAD_DIM
    queries = tl.load(projected + (pixel * pixel_step + channel), mask=known, other=0.0)
    grads = tl.load(grad_output + at, mask=known, other=0.0)
    outputs = tl.load(output + at, mask=known, other=0.0)
    query_delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), axis=1)
    tl.store(delta + pixel, query_delta[:, None], inside)
    # Queries beyond the image read +∞, which makes all their weights exactly zero.
    log_sum = tl.load(lse + pixel, mask=inside, other=float("inf"))

    by_row = tl.zeros([M, HALF], tl.float32)
    by_col = tl.zeros([M, HALF], tl.float32)
    embeddings = tl.zeros([ENTRIES, D], tl.float32)
    if HAS_POSITION:
        embeddings += _table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = _by_offset(queries, embeddings, M, K, ENTRIES, TERM_PARTS)
    entry = tl.arange(0, HALF)[None, :]
    if HAS_POSITION:
        terms += head_map * (TERM_PARTS * ENTRIES) + pixel * (TERM_PARTS * ENTRIES)
        _store_terms(terms + ((row - BEFORE + entry) & (HALF - 1)), by_row, inside, ENTRIES, TERM_PARTS)
        _store_terms(terms + HALF + ((col - BEFORE + entry) & (HALF - 1)), by_col, inside, ENTRIES, TERM_PARTS)

    halo_col = tl.arange(0, HALO_COLS)[None, :]
    halo_row = tl.arange(0, STEP)[None, :]
    at_col = first_col - BEFORE + halo_col
    col_inside = (at_col >= 0) & (at_col < width) if MASK else at_col > -K
    col_terms = _shifted(by_col, halo_col - place % COLS, col_inside, K, HALF) - log_sum * LN_2
    col_terms = _over_rows(col_terms, M, STEP, HALO_COLS)
    minus_delta = tl.broadcast_to(-query_delta[:, None], [M, N])

    halo = tl.arange(0, N)[:, None]
    key_at_col = first_col - BEFORE + halo % HALO_COLS
    key_at_row = first_row - BEFORE + halo // HALO_COLS
    readable = (key_at_col >= 0) & (key_at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    first_seen = (key_at_row * width + key_at_col) * pixel_step + channel
    value = projected + part + first_seen
    key = projected + 2 * part + first_seen
    at_row = first_row - BEFORE + halo_row
    offset = halo_row - place // COLS

    same_col = (halo % HALO_COLS == halo_col).to(queries.dtype)
    rows_ahead = halo // HALO_COLS - tl.arange(0, ROW_SUMS)[None, :]
    result = tl.zeros([M, D], tl.float32)
    row_sums = tl.zeros([M, ROW_SUMS], tl.float32)
    col_sums = tl.zeros([M, HALO_COLS], tl.float32)
    for _ in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row >= 0) & (key_at_row < height)
        row_inside = (at_row >= 0) & (at_row < height) if MASK else at_row > -K
        row_terms = _shifted(by_row, offset, row_inside, K, HALF) * LOG2_E
        logits = col_terms
        if HAS_KEY:
            keys = tl.load(key, mask=mask, other=0.0)
            logits = tl.dot(queries, tl.trans(keys), col_terms)
        values = tl.load(value, mask=mask, other=0.0)
        weights = tl.exp2(tl.reshape(logits, [M, STEP, HALO_COLS]) * LOG2_E + row_terms[:, :, None])
        grad_weights = tl.dot(grads, tl.trans(values), minus_delta)
        grad_logits = (tl.reshape(weights, [M, N]) * grad_weights).to(values.dtype)
        if HAS_KEY:
            result = tl.dot(grad_logits, keys, result)
        if HAS_POSITION:
            col_sums = tl.dot(grad_logits, same_col, col_sums)
            row_sums = tl.dot(grad_logits, (rows_ahead == 0).to(values.dtype), row_sums)
        key += STEP * width * pixel_step
        value += STEP * width * pixel_step
        key_at_row += STEP
        at_row += STEP
        offset += STEP
        rows_ahead += STEP

    if HAS_POSITION:
        from_rows = tl.gather(row_sums, tl.minimum(entry + place // COLS, ROW_SUMS - 1), 1)
        from_cols = tl.gather(col_sums, tl.minimum(entry + place % COLS, HALO_COLS - 1), 1)
        by_entry = tl.where((entry < K)[:, :, None], tl.join(from_rows, from_cols), 0.0)
        by_entry = tl.reshape(by_entry, [M, ENTRIES])
        result = tl.dot(by_entry, embeddings, result)
        at_sum = (pixel * num_heads + head) * ENTRIES + tl.arange(0, ENTRIES)[None, :]
        tl.store(sums + at_sum, by_entry.to(sums.dtype.element_ty), inside)
    grad_query = grad_projected + (pixel * pixel_step + channel)
    tl.store(grad_query, result.to(grad_projected.dtype.element_ty), known)


@triton.jit
def dense_backward_key_value_kernel(
    projected, lse, delta, terms, grad_output, grad_projected,
    height, width, num_heads: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, HALO_ROWS: tl.constexpr, HALO_COLS: tl.constexpr, STEP: tl.constexpr,
    ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr, HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr,
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
    part = num_heads * HEAD_DIM  # from query to value, and from value to key
    pixel_step = (2 + HAS_KEY) * part
    projected += area * pixel_step + head * HEAD_DIM
    grad_projected += area * pixel_step + head * HEAD_DIM
    at_value = part + ((row * width + col) * pixel_step + channel)
    values = tl.load(projected + at_value, mask=known, other=0.0)
    keys = values
    if HAS_KEY:
        keys = tl.load(projected + part + at_value, mask=known, other=0.0)

    halo = tl.arange(0, N)[:, None]
    at_col = first_col - AFTER + halo % HALO_COLS
    at_row = first_row - AFTER + halo // HALO_COLS
    col_exists = (at_col >= 0) & (at_col < width) & (halo % HALO_COLS < COLS + K - 1)
    pixel = at_row * width + at_col
    head_map = (image * num_heads + head) * height * width
    query = projected + (pixel * pixel_step + channel)
    grad_output += area * (num_heads * HEAD_DIM) + (pixel * (num_heads * HEAD_DIM) + head * HEAD_DIM + channel)
    lse += head_map + pixel
    delta += head_map + pixel
    entry = tl.arange(0, ENTRIES)[None, :]
    terms += head_map * (TERM_PARTS * ENTRIES) + (pixel * (TERM_PARTS * ENTRIES) + entry)
    picks = (entry == (row & (HALF - 1))) | (entry == HALF + (col & (HALF - 1)))
    picks = picks.to(tl.float16)
    # Residues tell keys of one window apart, not those of the next: these are masked.
    seen_row = place // COLS - tl.arange(0, STEP)[None, :] + K - 1
    seen_col = place % COLS - tl.trans(halo) % HALO_COLS + K - 1
    unseen_col = tl.where((seen_col >= 0) & (seen_col < K), 0.0, float("-inf"))

    into_keys = tl.zeros([M, D], tl.float32)
    into_values = tl.zeros([M, D], tl.float32)
    # Queries outside the image read zeros: their weights are numbers, and meet gradients of zero. Statistics are read
    # a step ahead by hand, since Triton does so only for what a product reads.
    exists = col_exists & (at_row >= 0) & (at_row < height)
    log_sum = tl.load(lse, mask=exists, other=0.0)
    query_delta = tl.load(delta, mask=exists, other=0.0)
    for _ in range(0, HALO_ROWS, STEP):
        queries = tl.load(query, mask=exists & (channel < HEAD_DIM), other=0.0)
        grads = tl.load(grad_output, mask=exists & (channel < HEAD_DIM), other=0.0)
        if HAS_POSITION:
            coarse_terms = tl.load(terms, mask=exists, other=0.0)
            if TERM_PARTS == 2:
                fine_terms = tl.load(terms + ENTRIES, mask=exists, other=0.0)
        lse += STEP * width
        delta += STEP * width
        at_row += STEP
        exists = col_exists & (at_row >= 0) & (at_row < height)
        next_log_sum = tl.load(lse, mask=exists, other=0.0)
        next_delta = tl.load(delta, mask=exists, other=0.0)
        logits = unseen_col - tl.trans(log_sum) * LN_2
        if HAS_POSITION:
            logits = tl.dot(picks, tl.trans(coarse_terms), logits)
            if TERM_PARTS == 2:
                logits = tl.dot(picks, tl.trans(fine_terms), logits)
        if HAS_KEY:
            logits = tl.dot(keys, tl.trans(queries), logits)
        unseen_row = tl.where((seen_row >= 0) & (seen_row < K), 0.0, float("-inf"))
        weights = tl.exp2(tl.reshape(logits, [M, STEP, HALO_COLS]) * LOG2_E + unseen_row[:, :, None])
        weights = tl.reshape(weights, [M, N])
        into_values = tl.dot(weights.to(grads.dtype), grads, into_values)
        if HAS_KEY:
            minus_delta = tl.broadcast_to(-tl.trans(query_delta), [M, N])
            grad_logits = weights * tl.dot(values, tl.trans(grads), minus_delta)
            into_keys = tl.dot(grad_logits.to(queries.dtype), queries, into_keys)
        query += STEP * width * pixel_step
        grad_output += STEP * width * num_heads * HEAD_DIM
        terms += STEP * width * TERM_PARTS * ENTRIES
        seen_row -= STEP
        log_sum = next_log_sum
        query_delta = next_delta

    tl.store(grad_projected + at_value, into_values.to(grad_projected.dtype.element_ty), known)
    if HAS_KEY:
        tl.store(grad_projected + part + at_value, into_keys.to(grad_projected.dtype.element_ty), known)
