# mypy: ignore-errors
"""The backward kernels of the tiling `Dense`, whose design is told in `dense`."""

import triton
import triton.language as tl

from .dense import (
    first_halo,
    load_table,
    over_rows,
    terms_by_offset,
    terms_of_columns,
    terms_of_rows,
    which_program,
)
from .threads import LN_2, LOG2_E


@triton.jit
def store_terms(places, terms, inside, ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr):
    coarse = terms.to(tl.float16)
    tl.store(places, coarse, inside)
    if TERM_PARTS == 2:
        tl.store(places + ENTRIES, (terms - coarse.to(tl.float32)).to(tl.float16), inside)


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
    channel = tl.arange(0, D)[None, :]
    image, head, first_row, first_col, place, row, col = which_program(num_heads, ROWS, COLS)
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
    part = num_heads * HEAD_DIM  # from query to key, and from key to value
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
        embeddings += load_table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = terms_by_offset(queries, embeddings, M, K, ENTRIES, TERM_PARTS)
    entry = tl.arange(0, HALF)[None, :]
    if HAS_POSITION:
        terms += head_map * (TERM_PARTS * ENTRIES) + pixel * (TERM_PARTS * ENTRIES)
        store_terms(terms + ((row - BEFORE + entry) & (HALF - 1)), by_row, inside, ENTRIES, TERM_PARTS)
        store_terms(terms + HALF + ((col - BEFORE + entry) & (HALF - 1)), by_col, inside, ENTRIES, TERM_PARTS)

    halo_col = tl.arange(0, HALO_COLS)[None, :]
    halo_row = tl.arange(0, STEP)[None, :]
    col_terms = terms_of_columns(by_col, place, first_col, width, K, BEFORE, COLS, HALO_COLS, HALF, MASK)
    col_terms = col_terms - log_sum * LN_2
    col_terms = over_rows(col_terms, M, STEP, HALO_COLS)
    minus_delta = tl.broadcast_to(-query_delta[:, None], [M, N])

    halo, key_at_row, readable, key, value = first_halo(
        projected, first_row, first_col, width, part, pixel_step, channel,
        K, BEFORE, HEAD_DIM, COLS, HALO_COLS, N, HAS_KEY,
    )  # fmt: skip
    at_row = first_row - BEFORE + halo_row
    offset = halo_row - place // COLS

    same_col = (halo % HALO_COLS == halo_col).to(queries.dtype)
    rows_ahead = halo // HALO_COLS - tl.arange(0, ROW_SUMS)[None, :]
    result = tl.zeros([M, D], tl.float32)
    row_sums = tl.zeros([M, ROW_SUMS], tl.float32)
    col_sums = tl.zeros([M, HALO_COLS], tl.float32)
    for _ in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row >= 0) & (key_at_row < height)
        row_terms = terms_of_rows(by_row, offset, at_row, height, K, HALF, MASK)
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
    channel = tl.arange(0, D)[None, :]
    image, head, first_row, first_col, place, row, col = which_program(num_heads, ROWS, COLS)
    known = (row < height) & (col < width) & (channel < HEAD_DIM)
    area = image * height * width
    part = num_heads * HEAD_DIM  # from query to key, and from key to value
    pixel_step = (2 + HAS_KEY) * part
    projected += area * pixel_step + head * HEAD_DIM
    grad_projected += area * pixel_step + head * HEAD_DIM
    own = part + ((row * width + col) * pixel_step + channel)
    values = tl.load(projected + HAS_KEY * part + own, mask=known, other=0.0)
    keys = values
    if HAS_KEY:
        keys = tl.load(projected + own, mask=known, other=0.0)

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

    tl.store(grad_projected + HAS_KEY * part + own, into_values.to(grad_projected.dtype.element_ty), known)
    if HAS_KEY:
        tl.store(grad_projected + own, into_keys.to(grad_projected.dtype.element_ty), known)
