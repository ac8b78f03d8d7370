"""Triton kernels of local attention: one thread owns a few neighbouring queries of one head, and walks their window.

A head of 8 channels is too thin for tensor cores, and a window of 49 keys too ragged: padding both would multiply the
work. Here a thread holds `VEC` channels of a pixel (one 16-byte load), a program covers a 2-D tile of pixels so that the
keys its windows share stay in the L1 cache, and a thread owns `COLS` queries side by side, so that each key it loads and
widens serves several of them. Blocks are [pixels, heads, slots, VEC]: a head of D channels spreads over D / VEC threads.

Walking the window row by row keeps the softmax online: the k logits of one window row, one rescaling, k values.
Logits are in base 2 (exp2 is one instruction). The embeddings come as one float32 table [2k, heads, d]: row t holds
concat(r_t, 0), row k + t holds concat(0, r_t), so that q·table is the row or the column term.

Keys outside the image are read as zeros; under the `mask` border rule the row and column terms carry a −∞ as well.
Per-query statistics (log-sum-exp, δ) are stored once per thread, [B, H, W, slots], so that every thread reads its own.
No atomics anywhere: every run gives the same bits.

Arguments named `*_image`, `*_row`, `*_COL` are strides in elements; the column strides are compile-time constants, so
that the loads of one window row share one address. With PACK = 2 the inputs are bfloat16 read as 32-bit words of two
channels, and their strides count words.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Below every real logit, yet finite: −∞ minus −∞ would be NaN in a window row that lies wholly outside the image.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _program(tile_rows, tile_cols, head_blocks):
    """Which image, tile and block of heads this program computes."""
    program = tl.program_id(0)
    head_block = program % head_blocks
    program = program // head_blocks
    tile_col = program % tile_cols
    program = program // tile_cols
    return (program // tile_rows).to(tl.int64), program % tile_rows, tile_col, head_block


@triton.jit
def _channels(
    head_block, num_heads, HEADS: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr, FULL: tl.constexpr
):
    """The channel of each lane of the block [1, HEADS·D], and whether there is one (always, when FULL)."""
    lane = tl.arange(0, HEADS * D)[None, :]
    channel = head_block * (HEADS * D) + lane
    exists = channel >= 0
    if not FULL:
        head = head_block * HEADS + lane // D
        channel = head * HEAD_DIM + lane % D
        exists = (head < num_heads) & (lane % D < HEAD_DIM)
    return channel, exists


@triton.jit
def _load(
    pointers, inside, exists,
    P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """[P, HEADS, D / VEC, VEC] in float32, zeros where not `inside` and beyond the last channel.

    bfloat16 comes as 32-bit words of two channels: a shift widens one, a mask the other (three instructions otherwise).
    """
    mask = inside if FULL else inside & exists
    if pointers.dtype.element_ty == tl.int32:
        words = tl.load(pointers, mask=mask, other=0)
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
        loaded = tl.join(first, second)
    else:
        loaded = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    return tl.reshape(loaded, [P, HEADS, D // VEC, VEC])


@triton.jit
def _embedding(
    table, index, channel, exists, width,
    P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Row `index` of the embedding table for every thread, [P, HEADS, D / VEC, VEC]."""
    pointers = tl.broadcast_to(table + index * width + channel, [P, HEADS * D])
    loaded = tl.load(pointers) if FULL else tl.load(pointers, mask=exists, other=0.0)
    return tl.reshape(loaded, [P, HEADS, D // VEC, VEC])


@triton.jit
def _dot(left, right):
    """Σ over the channels of a head, [P, HEADS]."""
    return tl.sum(tl.sum(left * right, axis=3), axis=2)


@triton.jit
def _wide(scalars):
    """[P, HEADS] → [P, HEADS, 1, 1], to meet channels. Scalars stay narrow until then: wide ones live in VEC registers."""
    return scalars[:, :, None, None]


@triton.jit
def _forward(
    query, key, value, table, output, lse,
    query_image, query_row, key_image, key_row, value_image, value_row,
    height, width, num_heads, tile_rows, tile_cols, head_blocks,
    QUERY_COL: tl.constexpr, KEY_COL: tl.constexpr, VALUE_COL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs [ROWS, GROUPS·COLS] × HEADS, and the base-2 log-sum-exp of their logits."""
    P: tl.constexpr = ROWS * GROUPS
    SLOTS: tl.constexpr = HEADS * D // VEC
    image, tile_row, tile_col, head_block = _program(tile_rows, tile_cols, head_blocks)
    channel, exists = _channels(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = _channels(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    pixels = tl.arange(0, P)[:, None]
    row = tile_row * ROWS + pixels // GROUPS
    first_col = (tile_col * GROUPS + pixels % GROUPS) * COLS

    query += image * query_image + (row * query_row + first_col * QUERY_COL + word)
    key += image * key_image + ((row - BEFORE) * key_row + (first_col - BEFORE) * KEY_COL + word)
    value += image * value_image + ((row - BEFORE) * value_row + (first_col - BEFORE) * VALUE_COL + word)
    table_width = num_heads * HEAD_DIM

    queries = ()
    accumulators = ()
    highest = ()
    totals = ()
    for i in tl.static_range(COLS):
        query_inside = (row < height) & (first_col + i < width)
        queries += (_load(query + i * QUERY_COL, query_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        accumulators += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        highest += (tl.full([P, HEADS], LOWEST, tl.float32),)
        totals += (tl.zeros([P, HEADS], tl.float32),)

    col_terms = ()  # [u · COLS + i]
    for u in tl.static_range(K):
        for i in tl.static_range(COLS):
            term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                term = _dot(queries[i], _embedding(table, K + u, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                at_col = first_col + (i + u - BEFORE)
                term = tl.where((at_col >= 0) & (at_col < width), term, float("-inf"))
            col_terms += (term,)

    for t in range(K):
        row_inside = (row + t >= BEFORE) & (row + t < height + BEFORE)
        logits = ()  # [j · COLS + i]; those of keys outside a query's window are placeholders
        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            if HAS_KEY:
                one_key = _load(key + j * KEY_COL, inside, word_exists, P, HEADS, D, VEC, FULL)
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    logit = col_terms[(j - i) * COLS + i]
                    if HAS_KEY:
                        logit += _dot(queries[i], one_key)
                    logits += (logit,)
                else:
                    logits += (0.0,)

        # The row term is common to these k logits: it enters their maximum and their shift, not each of them.
        row_terms = ()
        for i in tl.static_range(COLS):
            row_term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                row_term = _dot(queries[i], _embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                row_term = tl.where(row_inside, row_term, float("-inf"))
            row_terms += (row_term,)
        shifts = ()
        new_highest = ()
        new_totals = ()
        new_accumulators = ()
        for i in tl.static_range(COLS):
            top = logits[i * COLS + i]
            for u in tl.static_range(1, K):
                top = tl.maximum(top, logits[(i + u) * COLS + i])
            top = tl.maximum(highest[i], top + row_terms[i])
            rescale = tl.exp2(highest[i] - top)
            shifts += (top - row_terms[i],)
            new_highest += (top,)
            new_totals += (totals[i] * rescale,)
            new_accumulators += (accumulators[i] * _wide(rescale),)
        highest = new_highest
        totals = new_totals
        accumulators = new_accumulators

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            one_value = _load(value + j * VALUE_COL, inside, word_exists, P, HEADS, D, VEC, FULL)
            new_totals = ()
            new_accumulators = ()
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    weight = tl.exp2(logits[j * COLS + i] - shifts[i])
                    new_totals += (totals[i] + weight,)
                    new_accumulators += (accumulators[i] + _wide(weight) * one_value,)
                else:
                    new_totals += (totals[i],)
                    new_accumulators += (accumulators[i],)
            totals = new_totals
            accumulators = new_accumulators
        key += key_row
        value += value_row

    pixel = (image * height + row) * width + first_col
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        result = tl.reshape(accumulators[i] / _wide(totals[i]), [P, HEADS * D])
        mask = stored if FULL else stored & exists
        tl.store(output + (pixel + i) * table_width + channel, result.to(output.dtype.element_ty), mask)
        if SAVE_LSE:
            stat = tl.broadcast_to((highest[i] + tl.log2(totals[i]))[:, :, None], [P, HEADS, D // VEC])
            tl.store(lse + (pixel + i) * (head_blocks * SLOTS) + slot, tl.reshape(stat, [P, SLOTS]), stored)


@triton.jit
def _backward_query(
    query, key, value, table, output, lse, grad_output, grad_query, delta, grad_table,
    query_image, query_row, key_image, key_row, value_image, value_row,
    height, width, num_heads, tile_rows, tile_cols, head_blocks,
    QUERY_COL: tl.constexpr, KEY_COL: tl.constexpr, VALUE_COL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """∂query, δ = Σ_d ∂out·out for the other kernel, and this tile's share of ∂table.

    `output`, `grad_output` and `grad_query` are contiguous; `grad_table` is [tiles, 2k, heads, d] in float32.
    """
    P: tl.constexpr = ROWS * GROUPS
    SLOTS: tl.constexpr = HEADS * D // VEC
    image, tile_row, tile_col, head_block = _program(tile_rows, tile_cols, head_blocks)
    channel, exists = _channels(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = _channels(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    pixels = tl.arange(0, P)[:, None]
    row = tile_row * ROWS + pixels // GROUPS
    first_col = (tile_col * GROUPS + pixels % GROUPS) * COLS
    pixel = (image * height + row) * width + first_col
    table_width = num_heads * HEAD_DIM

    query += image * query_image + (row * query_row + first_col * QUERY_COL + word)
    key += image * key_image + ((row - BEFORE) * key_row + (first_col - BEFORE) * KEY_COL + word)
    value += image * value_image + ((row - BEFORE) * value_row + (first_col - BEFORE) * VALUE_COL + word)
    grad_table += (tl.program_id(0) // head_blocks).to(tl.int64) * (2 * K * table_width) + channel

    queries = ()
    grad_outputs = ()
    grad_queries = ()
    log_sums = ()
    deltas = ()
    for i in tl.static_range(COLS):
        query_inside = (row < height) & (first_col + i < width)
        queries += (_load(query + i * QUERY_COL, query_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        at = (pixel + i) * (table_width // PACK) + word
        grad_out = _load(grad_output + at, query_inside, word_exists, P, HEADS, D, VEC, FULL)
        out = _load(output + at, query_inside, word_exists, P, HEADS, D, VEC, FULL)
        query_delta = _dot(grad_out, out)
        stat = tl.reshape(tl.broadcast_to(query_delta[:, :, None], [P, HEADS, D // VEC]), [P, SLOTS])
        at_slot = (pixel + i) * (head_blocks * SLOTS) + slot
        tl.store(delta + at_slot, stat, query_inside)
        # Threads beyond the image read +∞, which makes all their weights exactly zero.
        stat = tl.load(lse + at_slot, query_inside, other=float("inf"))
        log_sums += (tl.max(tl.reshape(stat, [P, HEADS, D // VEC]), axis=2),)
        deltas += (query_delta,)
        grad_outputs += (grad_out,)
        grad_queries += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)

    col_terms = ()  # [u · COLS + i]
    col_sums = ()
    for u in tl.static_range(K):
        for i in tl.static_range(COLS):
            term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                term = _dot(queries[i], _embedding(table, K + u, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                at_col = first_col + (i + u - BEFORE)
                term = tl.where((at_col >= 0) & (at_col < width), term, float("-inf"))
            col_terms += (term,)
            col_sums += (tl.zeros([P, HEADS], tl.float32),)

    for t in range(K):
        row_inside = (row + t >= BEFORE) & (row + t < height + BEFORE)
        row_terms = ()
        row_sums = ()
        for i in tl.static_range(COLS):
            row_term = -log_sums[i]
            if HAS_POSITION:
                row_term += _dot(queries[i], _embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                row_term = tl.where(row_inside, row_term, float("-inf"))
            row_terms += (row_term,)
            row_sums += (tl.zeros([P, HEADS], tl.float32),)

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            if HAS_KEY:
                one_key = _load(key + j * KEY_COL, inside, word_exists, P, HEADS, D, VEC, FULL)
            one_value = _load(value + j * VALUE_COL, inside, word_exists, P, HEADS, D, VEC, FULL)
            new_grad_queries = ()
            new_row_sums = ()
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    logit = col_terms[(j - i) * COLS + i] + row_terms[i]
                    if HAS_KEY:
                        logit += _dot(queries[i], one_key)
                    grad_logit = tl.exp2(logit) * (_dot(grad_outputs[i], one_value) - deltas[i])
                    if HAS_KEY:
                        new_grad_queries += (grad_queries[i] + _wide(grad_logit) * one_key,)
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
        key += key_row
        value += value_row

        if HAS_POSITION:
            row_embedding = _embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL)
            row_grads = tl.zeros([P, HEADS, D // VEC, VEC], tl.float32)
            new_grad_queries = ()
            for i in tl.static_range(COLS):
                new_grad_queries += (grad_queries[i] + _wide(row_sums[i]) * row_embedding,)
                row_grads += _wide(row_sums[i]) * queries[i]
            grad_queries = new_grad_queries
            share = tl.sum(tl.reshape(row_grads, [P, HEADS * D]), axis=0, keep_dims=True) * LN_2
            tl.store(grad_table + t * table_width, share, exists)

    if HAS_POSITION:
        for u in tl.static_range(K):
            col_embedding = _embedding(table, K + u, channel, exists, table_width, P, HEADS, D, VEC, FULL)
            col_grads = tl.zeros([P, HEADS, D // VEC, VEC], tl.float32)
            new_grad_queries = ()
            for i in tl.static_range(COLS):
                new_grad_queries += (grad_queries[i] + _wide(col_sums[u * COLS + i]) * col_embedding,)
                col_grads += _wide(col_sums[u * COLS + i]) * queries[i]
            grad_queries = new_grad_queries
            share = tl.sum(tl.reshape(col_grads, [P, HEADS * D]), axis=0, keep_dims=True) * LN_2
            tl.store(grad_table + (K + u) * table_width, share, exists)

    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        mask = stored if FULL else stored & exists
        result = tl.reshape(grad_queries[i], [P, HEADS * D]).to(grad_query.dtype.element_ty)
        tl.store(grad_query + (pixel + i) * table_width + channel, result, mask)


@triton.jit
def _backward_key_value(
    query, key, value, table, lse, delta, grad_output, grad_key, grad_value,
    query_image, query_row, key_image, key_row, value_image, value_row,
    height, width, num_heads, tile_rows, tile_cols, head_blocks,
    QUERY_COL: tl.constexpr, KEY_COL: tl.constexpr, VALUE_COL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value: each thread owns `COLS` keys and walks the queries that see them.

    Key (a, b) is seen at window place (t, u) by query (a − t + BEFORE, b − u + BEFORE). The position term is folded
    into the key, q·(k + r), so that it costs an addition per channel and nothing per query has to be stored.
    """
    P: tl.constexpr = ROWS * GROUPS
    SLOTS: tl.constexpr = HEADS * D // VEC
    AFTER: tl.constexpr = K - 1 - BEFORE
    WIDTH: tl.constexpr = HEADS * D
    image, tile_row, tile_col, head_block = _program(tile_rows, tile_cols, head_blocks)
    channel, exists = _channels(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = _channels(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    pixels = tl.arange(0, P)[:, None]
    row = tile_row * ROWS + pixels // GROUPS
    first_col = (tile_col * GROUPS + pixels % GROUPS) * COLS
    pixel = (image * height + row) * width + first_col
    table_width = num_heads * HEAD_DIM
    stat_width = head_blocks * SLOTS

    key += image * key_image + (row * key_row + first_col * KEY_COL + word)
    value += image * value_image + (row * value_row + first_col * VALUE_COL + word)
    query += image * query_image + ((row + BEFORE) * query_row + (first_col - AFTER) * QUERY_COL + word)
    first_seen = pixel + BEFORE * width - AFTER
    grad_output += first_seen * (table_width // PACK) + word
    lse += first_seen * stat_width + slot
    delta += first_seen * stat_width + slot

    keys = ()
    values = ()
    grad_keys = ()
    grad_values = ()
    for i in tl.static_range(COLS):
        key_inside = (row < height) & (first_col + i < width)
        if HAS_KEY:
            keys += (_load(key + i * KEY_COL, key_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        else:
            keys += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        values += (_load(value + i * VALUE_COL, key_inside, word_exists, P, HEADS, D, VEC, FULL),)
        grad_keys += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        grad_values += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)

    for t in range(K):
        row_inside = (row - t + BEFORE >= 0) & (row - t + BEFORE < height)
        placed_keys = keys
        if HAS_POSITION:
            placed_keys = ()
            row_embedding = _embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL) * LOG2_E
            for i in tl.static_range(COLS):
                placed_keys += (keys[i] + row_embedding,)

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= AFTER) & (first_col + j < width + AFTER)
            one_query = _load(query + j * QUERY_COL, inside, word_exists, P, HEADS, D, VEC, FULL)
            grad_out = _load(grad_output + j * (table_width // PACK), inside, word_exists, P, HEADS, D, VEC, FULL)
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
                        placed += LOG2_E * _embedding(
                            table, 2 * K - 1 + i - j, channel, exists, table_width, P, HEADS, D, VEC, FULL
                        )
                    weight = tl.exp2(_dot(one_query, placed) - log_sum)
                    new_grad_values += (grad_values[i] + _wide(weight) * grad_out,)
                    if HAS_KEY:
                        grad_logit = weight * (_dot(grad_out, values[i]) - query_delta)
                        new_grad_keys += (grad_keys[i] + _wide(grad_logit) * one_query,)
                    else:
                        new_grad_keys += (grad_keys[i],)
                else:
                    new_grad_keys += (grad_keys[i],)
                    new_grad_values += (grad_values[i],)
            grad_keys = new_grad_keys
            grad_values = new_grad_values
        query -= query_row
        grad_output -= width * (table_width // PACK)
        lse -= width * stat_width
        delta -= width * stat_width

    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        mask = stored if FULL else stored & exists
        at = (pixel + i) * table_width + channel
        if HAS_KEY:
            tl.store(grad_key + at, tl.reshape(grad_keys[i], [P, WIDTH]).to(grad_key.dtype.element_ty), mask)
        tl.store(grad_value + at, tl.reshape(grad_values[i], [P, WIDTH]).to(grad_value.dtype.element_ty), mask)
