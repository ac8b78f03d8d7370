# mypy: ignore-errors
"""The backward kernels of the tiling `Threads`: ∂query with ∂table, and ∂key with ∂value, each by gathering."""

import triton
import triton.language as tl

from .threads import (
    LOG2_E,
    channels_of,
    column_terms,
    dot,
    embedding,
    in_words,
    load_pixels,
    tile_of,
    which_program,
    wide,
    windows_of,
)


@triton.jit
def backward_query_kernel(
    projected, table, output, lse, grad_output, grad_projected, delta, sums,
    height, width, num_heads, head_blocks, PIXEL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr,
    P: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, LOG_ENTRIES: tl.constexpr,
):  # fmt: skip
    """∂query, δ = Σ_d ∂out·out for the other kernel, and each query's ∂logits summed by row and column offset.

    `sums` is [B, H, W, heads, ENTRIES] with ENTRIES = 2^LOG_ENTRIES ≥ 2k, entry 2t for row offset t, entry 2t + 1 for
    column offset t; ∂table is their product with q.
    """
    SLOTS: tl.constexpr = HEADS * D // VEC
    image, tile_row, tile_col, head_block = which_program(head_blocks)
    channel, exists = channels_of(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = channels_of(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    row, first_col = tile_of(tile_row, tile_col, P, COLS)
    pixel = row * width + first_col
    table_width = num_heads * HEAD_DIM
    area = image * height * width
    output = in_words(output, PACK) + area * (table_width // PACK)
    grad_output = in_words(grad_output, PACK) + area * (table_width // PACK)
    grad_projected += area * (PIXEL * PACK)
    lse += area * (head_blocks * SLOTS)
    delta += area * (head_blocks * SLOTS)

    projected = in_words(projected, PACK) + area * PIXEL
    query, key, value = windows_of(projected, pixel, width, word, PIXEL, BEFORE, HAS_KEY)

    queries = ()
    grad_outputs = ()
    grad_queries = ()
    log_sums = ()
    deltas = ()
    for i in tl.static_range(COLS):
        query_inside = (row < height) & (first_col + i < width)
        queries += (load_pixels(query + i * PIXEL, query_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        at = (pixel + i) * (table_width // PACK) + word
        grad_out = load_pixels(grad_output + at, query_inside, word_exists, P, HEADS, D, VEC, FULL)
        out = load_pixels(output + at, query_inside, word_exists, P, HEADS, D, VEC, FULL)
        query_delta = dot(grad_out, out)
        stat = tl.reshape(tl.broadcast_to(query_delta[:, :, None], [P, HEADS, D // VEC]), [P, SLOTS])
        at_slot = (pixel + i) * (head_blocks * SLOTS) + slot
        tl.store(delta + at_slot, stat, query_inside)
        # Threads beyond the image read +∞, which makes all their weights exactly zero.
        stat = tl.load(lse + at_slot, query_inside, other=float("inf"))
        log_sums += (tl.max(tl.reshape(stat, [P, HEADS, D // VEC]), axis=2),)
        deltas += (query_delta,)
        grad_outputs += (grad_out,)
        grad_queries += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)

    col_terms = column_terms(
        queries, table, channel, exists, table_width, first_col, width,
        K, BEFORE, P, HEADS, D, VEC, FULL, COLS, HAS_POSITION, MASK,
    )  # fmt: skip
    col_sums = ()
    all_row_sums = ()  # [t · COLS + i]
    for _ in tl.static_range(K * COLS):
        col_sums += (tl.zeros([P, HEADS], tl.float32),)
        all_row_sums += (tl.zeros([P, HEADS], tl.float32),)

    for t in range(K):
        row_inside = (row + t >= BEFORE) & (row + t < height + BEFORE)
        row_terms = ()
        row_sums = ()
        for i in tl.static_range(COLS):
            row_term = -log_sums[i]
            if HAS_POSITION:
                row_term += dot(queries[i], embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                row_term = tl.where(row_inside, row_term, float("-inf"))
            row_terms += (row_term,)
            row_sums += (tl.zeros([P, HEADS], tl.float32),)

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            if HAS_KEY:
                one_key = load_pixels(key + j * PIXEL, inside, word_exists, P, HEADS, D, VEC, FULL)
            one_value = load_pixels(value + j * PIXEL, inside, word_exists, P, HEADS, D, VEC, FULL)
            new_grad_queries = ()
            new_row_sums = ()
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    logit = col_terms[(j - i) * COLS + i] + row_terms[i]
                    if HAS_KEY:
                        logit += dot(queries[i], one_key)
                    grad_logit = tl.exp2(logit) * (dot(grad_outputs[i], one_value) - deltas[i])
                    if HAS_KEY:
                        new_grad_queries += (grad_queries[i] + wide(grad_logit) * one_key,)
                    else:
                        new_grad_queries += (grad_queries[i],)
                    new_row_sums += (row_sums[i] + grad_logit,)
                    new_col_sums = ()
                    for n in tl.static_range(K * COLS):
                        if n == (j - i) * COLS + i:
                            new_col_sums += (col_sums[n] + grad_logit,)
                        else:
                            new_col_sums += (col_sums[n],)
                    col_sums = new_col_sums
                else:
                    new_grad_queries += (grad_queries[i],)
                    new_row_sums += (row_sums[i],)
            grad_queries = new_grad_queries
            row_sums = new_row_sums
        key += width * PIXEL
        value += width * PIXEL

        if HAS_POSITION:
            # t is a run-time number: the sums of window row t are put in their place by comparison.
            new_all_row_sums = ()
            for n in tl.static_range(K * COLS):
                new_all_row_sums += (tl.where(t == n // COLS, row_sums[n % COLS], all_row_sums[n]),)
            all_row_sums = new_all_row_sums

    if HAS_POSITION:
        for n in tl.static_range(2 * K):
            entry = embedding(table, n, channel, exists, table_width, P, HEADS, D, VEC, FULL)
            new_grad_queries = ()
            for i in tl.static_range(COLS):
                grad_sum = wide(all_row_sums[n * COLS + i] if n < K else col_sums[(n - K) * COLS + i])
                new_grad_queries += (grad_queries[i] + grad_sum * entry,)
            grad_queries = new_grad_queries
        # Joined two by two, entry n of `parts` ends at place n of the last axis: one wide store for each query.
        ENTRIES: tl.constexpr = 2**LOG_ENTRIES
        sum_head = head_block * HEADS + tl.arange(0, HEADS * ENTRIES)[None, :] // ENTRIES
        at_entry = head_block * (HEADS * ENTRIES) + tl.arange(0, HEADS * ENTRIES)[None, :]
        for i in tl.static_range(COLS):
            parts = ()
            for t in tl.static_range(ENTRIES // 2):
                if t < K:
                    parts += (all_row_sums[t * COLS + i], col_sums[t * COLS + i])
                else:
                    parts += (tl.zeros([P, HEADS], tl.float32), tl.zeros([P, HEADS], tl.float32))
            for level in tl.static_range(LOG_ENTRIES):
                joined = ()
                for n in tl.static_range(ENTRIES >> (level + 1)):
                    joined += (tl.join(parts[n], parts[n + (ENTRIES >> (level + 1))]),)
                parts = joined
            packed = tl.reshape(parts[0], [P, HEADS * ENTRIES]).to(sums.dtype.element_ty)
            stored = (row < height) & (first_col + i < width) & (sum_head < num_heads)
            tl.store(
                sums + area * (num_heads * ENTRIES) + ((pixel + i) * (num_heads * ENTRIES) + at_entry), packed, stored
            )

    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        mask = stored if FULL else stored & exists
        result = tl.reshape(grad_queries[i], [P, HEADS * D]).to(grad_projected.dtype.element_ty)
        tl.store(grad_projected + (pixel + i) * (PIXEL * PACK) + channel, result, mask)


@triton.jit
def backward_key_value_kernel(
    projected, table, lse, delta, grad_output, grad_projected,
    height, width, num_heads, head_blocks, PIXEL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr,
    P: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value: each thread owns `COLS` keys and walks the queries that see them.

    Key (a, b) is seen at window place (t, u) by query (a − t + BEFORE, b − u + BEFORE). The position term is folded
    into the key, q·(k + r), so that it costs an addition per channel and nothing per query has to be stored.
    """
    SLOTS: tl.constexpr = HEADS * D // VEC
    AFTER: tl.constexpr = K - 1 - BEFORE
    WIDTH: tl.constexpr = HEADS * D
    PART: tl.constexpr = PIXEL // (2 + HAS_KEY)  # from query to key, and from key to value
    image, tile_row, tile_col, head_block = which_program(head_blocks)
    channel, exists = channels_of(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = channels_of(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    row, first_col = tile_of(tile_row, tile_col, P, COLS)
    pixel = row * width + first_col
    area = image * height * width
    table_width = num_heads * HEAD_DIM
    stat_width = head_blocks * SLOTS

    first_seen = pixel + BEFORE * width - AFTER
    projected = in_words(projected, PACK) + area * PIXEL
    query = projected + (first_seen * PIXEL + word)
    key = projected + PART + (pixel * PIXEL + word)
    value = projected + (1 + HAS_KEY) * PART + (pixel * PIXEL + word)
    grad_output = in_words(grad_output, PACK) + area * (table_width // PACK)
    grad_output += first_seen * (table_width // PACK) + word
    lse += area * stat_width + (first_seen * stat_width + slot)
    delta += area * stat_width + (first_seen * stat_width + slot)

    keys = ()
    values = ()
    grad_keys = ()
    grad_values = ()
    for i in tl.static_range(COLS):
        key_inside = (row < height) & (first_col + i < width)
        if HAS_KEY:
            keys += (load_pixels(key + i * PIXEL, key_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        else:
            keys += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        values += (load_pixels(value + i * PIXEL, key_inside, word_exists, P, HEADS, D, VEC, FULL),)
        grad_keys += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        grad_values += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)

    for t in range(K):
        row_inside = (row - t + BEFORE >= 0) & (row - t + BEFORE < height)
        placed_keys = keys
        if HAS_POSITION:
            placed_keys = ()
            row_embedding = embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL) * LOG2_E
            for i in tl.static_range(COLS):
                placed_keys += (keys[i] + row_embedding,)

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= AFTER) & (first_col + j < width + AFTER)
            one_query = load_pixels(query + j * PIXEL, inside, word_exists, P, HEADS, D, VEC, FULL)
            grad_out = load_pixels(grad_output + j * (table_width // PACK), inside, word_exists, P, HEADS, D, VEC, FULL)
            # Queries outside the image read +∞, which makes their weights exactly zero.
            stat = tl.load(lse + j * stat_width, inside, other=float("inf"))
            log_sum = tl.max(tl.reshape(stat, [P, HEADS, D // VEC]), axis=2)
            stat = tl.load(delta + j * stat_width, inside, other=0.0)
            query_delta = tl.max(tl.reshape(stat, [P, HEADS, D // VEC]), axis=2)
            new_grad_keys = ()
            new_grad_values = ()
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    placed = placed_keys[i]
                    if HAS_POSITION:
                        placed += LOG2_E * embedding(
                            table, 2 * K - 1 + i - j, channel, exists, table_width, P, HEADS, D, VEC, FULL
                        )
                    weight = tl.exp2(dot(one_query, placed) - log_sum)
                    new_grad_values += (grad_values[i] + wide(weight) * grad_out,)
                    if HAS_KEY:
                        grad_logit = weight * (dot(grad_out, values[i]) - query_delta)
                        new_grad_keys += (grad_keys[i] + wide(grad_logit) * one_query,)
                    else:
                        new_grad_keys += (grad_keys[i],)
                else:
                    new_grad_keys += (grad_keys[i],)
                    new_grad_values += (grad_values[i],)
            grad_keys = new_grad_keys
            grad_values = new_grad_values
        query -= width * PIXEL
        grad_output -= width * (table_width // PACK)
        lse -= width * stat_width
        delta -= width * stat_width

    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        mask = stored if FULL else stored & exists
        at = area * (PIXEL * PACK) + ((pixel + i) * (PIXEL * PACK) + channel)
        grad_key = grad_projected + PART * PACK + at
        grad_value = grad_key + HAS_KEY * PART * PACK
        tl.store(grad_value, tl.reshape(grad_values[i], [P, WIDTH]).to(grad_projected.dtype.element_ty), mask)
        if HAS_KEY:
            tl.store(grad_key, tl.reshape(grad_keys[i], [P, WIDTH]).to(grad_projected.dtype.element_ty), mask)
