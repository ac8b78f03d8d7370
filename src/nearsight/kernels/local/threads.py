# mypy: ignore-errors
"""The tiling `Threads`: the forward kernel, and what it shares with the backward ones in `threads_backward`.

One thread owns a few neighbouring queries of one head and walks their window. A head of 8 channels is too thin for
tensor cores, and a window of 49 keys too ragged: padding both would multiply the work. So a thread holds `VEC` channels
of a pixel (one 16-byte load), a program covers a 2-D tile of pixels so that the keys its windows share stay in the L1
cache, and a thread owns `COLS` queries side by side so that each key it loads and widens serves several of them.
Blocks are [P pixels, HEADS, D / VEC, VEC]: a head of D channels spreads over D / VEC threads.

Logits are in base 2 (exp2 is one instruction). The embeddings come as one float32 table [2k, heads, d]: row t holds
concat(r_t, 0), row k + t holds concat(0, r_t), so that q·table is the row or the column term.

Keys outside the image are read as zeros; under the `mask` border rule the row and column terms carry a −∞ as well.
Per-query statistics (log-sum-exp, δ) are stored once per thread, [B, H, W, slots], so that every thread reads its own.
No atomics anywhere: every run gives the same bits.

Query, key and value are parts of one contiguous projection [B, H, W, parts, heads, d], and so are their gradients.
PIXEL is its step from pixel to pixel, a compile-time constant so that the loads of one window row share one address.
Outputs and their gradients are [B, H, W, heads, d]. With PACK = 2 the inputs are bfloat16 read as 32-bit words of two
channels, and PIXEL counts words.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Below every real logit, yet finite: −∞ minus −∞ would be NaN in a window row that lies wholly outside the image.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def which_program(head_blocks):
    """Image, tile and block of heads of this program; neighbours in the grid read the same cache lines."""
    tile_col = tl.program_id(0) // head_blocks
    return tl.program_id(2).to(tl.int64), tl.program_id(1), tile_col, tl.program_id(0) % head_blocks


@triton.jit
def channels_of(
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
def tile_of(tile_row, tile_col, P: tl.constexpr, COLS: tl.constexpr):
    """Row [P, 1] and first column of each thread's pixels."""
    return tile_row * P + tl.arange(0, P)[:, None], tile_col * COLS


@triton.jit
def in_words(pointer, PACK: tl.constexpr):
    """Where PACK is 2, bfloat16 as 32-bit words of two channels."""
    if PACK == 2:
        pointer = pointer.to(tl.pointer_type(tl.int32), bitcast=True)
    return pointer


@triton.jit
def load_pixels(
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
def embedding(
    table, index, channel, exists, width,
    P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Row `index` of the embedding table for every thread, [P, HEADS, D / VEC, VEC]."""
    pointers = tl.broadcast_to(table + index * width + channel, [P, HEADS * D])
    loaded = tl.load(pointers) if FULL else tl.load(pointers, mask=exists, other=0.0)
    return tl.reshape(loaded, [P, HEADS, D // VEC, VEC])


@triton.jit
def windows_of(projected, pixel, width, word, PIXEL: tl.constexpr, BEFORE: tl.constexpr, HAS_KEY: tl.constexpr):
    """Where each thread's queries are, and the first keys and values of their windows."""
    PART: tl.constexpr = PIXEL // (2 + HAS_KEY)  # from query to key, and from key to value
    first_seen = projected + ((pixel - BEFORE * width - BEFORE) * PIXEL + word)
    return projected + (pixel * PIXEL + word), first_seen + PART, first_seen + (1 + HAS_KEY) * PART


@triton.jit
def dot(left, right):
    """Σ over the channels of a head, [P, HEADS]."""
    return tl.sum(tl.sum(left * right, axis=3), axis=2)


@triton.jit
def wide(scalars):
    """[P, HEADS] → [P, HEADS, 1, 1], to meet channels. Narrow until then: a wide scalar lives in VEC registers."""
    return scalars[:, :, None, None]


@triton.jit
def column_terms(
    queries, table, channel, exists, table_width, first_col, width,
    K: tl.constexpr, BEFORE: tl.constexpr, P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr,
    FULL: tl.constexpr, COLS: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """q·r of every column offset u and query i of a thread at place u · COLS + i; −∞ outside the image under MASK."""
    terms = ()
    for u in tl.static_range(K):
        for i in tl.static_range(COLS):
            term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                term = dot(queries[i], embedding(table, K + u, channel, exists, table_width, P, HEADS, D, VEC, FULL))
            if MASK:
                at_col = first_col + (i + u - BEFORE)
                term = tl.where((at_col >= 0) & (at_col < width), term, float("-inf"))
            terms += (term,)
    return terms


@triton.jit
def forward_kernel(
    projected, table, output, lse,
    height, width, num_heads, head_blocks, PIXEL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr,
    P: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs [P, COLS] × HEADS, and the base-2 log-sum-exp of their logits."""
    SLOTS: tl.constexpr = HEADS * D // VEC
    image, tile_row, tile_col, head_block = which_program(head_blocks)
    channel, exists = channels_of(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = channels_of(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    row, first_col = tile_of(tile_row, tile_col, P, COLS)

    pixel = row * width + first_col
    area = image * height * width
    projected = in_words(projected, PACK) + area * PIXEL
    query, key, value = windows_of(projected, pixel, width, word, PIXEL, BEFORE, HAS_KEY)
    table_width = num_heads * HEAD_DIM

    queries = ()
    accumulators = ()
    highest = ()
    totals = ()
    for i in tl.static_range(COLS):
        query_inside = (row < height) & (first_col + i < width)
        queries += (load_pixels(query + i * PIXEL, query_inside, word_exists, P, HEADS, D, VEC, FULL) * LOG2_E,)
        accumulators += (tl.zeros([P, HEADS, D // VEC, VEC], tl.float32),)
        highest += (tl.full([P, HEADS], LOWEST, tl.float32),)
        totals += (tl.zeros([P, HEADS], tl.float32),)

    col_terms = column_terms(
        queries, table, channel, exists, table_width, first_col, width,
        K, BEFORE, P, HEADS, D, VEC, FULL, COLS, HAS_POSITION, MASK,
    )  # fmt: skip

    for t in range(K):
        row_inside = (row + t >= BEFORE) & (row + t < height + BEFORE)
        logits = ()  # [j · COLS + i]; those of keys outside a query's window are placeholders
        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            if HAS_KEY:
                one_key = load_pixels(key + j * PIXEL, inside, word_exists, P, HEADS, D, VEC, FULL)
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    logit = col_terms[(j - i) * COLS + i]
                    if HAS_KEY:
                        logit += dot(queries[i], one_key)
                    logits += (logit,)
                else:
                    logits += (0.0,)

        # The row term is common to these k logits: it enters their maximum and their shift, not each of them.
        row_terms = ()
        for i in tl.static_range(COLS):
            row_term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                row_term = dot(queries[i], embedding(table, t, channel, exists, table_width, P, HEADS, D, VEC, FULL))
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
            new_accumulators += (accumulators[i] * wide(rescale),)
        highest = new_highest
        totals = new_totals
        accumulators = new_accumulators

        for j in tl.static_range(K + COLS - 1):
            inside = row_inside & (first_col + j >= BEFORE) & (first_col + j < width + BEFORE)
            one_value = load_pixels(value + j * PIXEL, inside, word_exists, P, HEADS, D, VEC, FULL)
            new_totals = ()
            new_accumulators = ()
            for i in tl.static_range(COLS):
                if j >= i and j < i + K:
                    weight = tl.exp2(logits[j * COLS + i] - shifts[i])
                    new_totals += (totals[i] + weight,)
                    new_accumulators += (accumulators[i] + wide(weight) * one_value,)
                else:
                    new_totals += (totals[i],)
                    new_accumulators += (accumulators[i],)
            totals = new_totals
            accumulators = new_accumulators
        key += width * PIXEL
        value += width * PIXEL

    output += area * table_width
    lse += area * (head_blocks * SLOTS)
    slot = head_block * SLOTS + tl.arange(0, SLOTS)[None, :]
    for i in tl.static_range(COLS):
        stored = (row < height) & (first_col + i < width)
        result = tl.reshape(accumulators[i] / wide(totals[i]), [P, HEADS * D])
        mask = stored if FULL else stored & exists
        tl.store(output + (pixel + i) * table_width + channel, result.to(output.dtype.element_ty), mask)
        if SAVE_LSE:
            stat = tl.broadcast_to((highest[i] + tl.log2(totals[i]))[:, :, None], [P, HEADS, D // VEC])
            tl.store(lse + (pixel + i) * (head_blocks * SLOTS) + slot, tl.reshape(stat, [P, SLOTS]), stored)
