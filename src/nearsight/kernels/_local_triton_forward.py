# mypy: ignore-errors
"""The forward kernel of local attention; its design is told in `_local_triton_shared`."""

import triton
import triton.language as tl

from ._local_triton_shared import (
    LOG2_E,
    LOWEST,
    channels_of,
    dot,
    embedding,
    in_words,
    load_pixels,
    which_program,
    wide,
)


@triton.jit
def forward_kernel(
    projected, table, output, lse,
    height, width, num_heads, head_blocks, PIXEL: tl.constexpr,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    VEC: tl.constexpr, FULL: tl.constexpr, PACK: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr,
    HAS_KEY: tl.constexpr, HAS_POSITION: tl.constexpr, MASK: tl.constexpr, SAVE_LSE: tl.constexpr,
):  # fmt: skip
    """One tile of outputs [ROWS, GROUPS·COLS] × HEADS, and the base-2 log-sum-exp of their logits."""
    P: tl.constexpr = ROWS * GROUPS
    SLOTS: tl.constexpr = HEADS * D // VEC
    PART: tl.constexpr = PIXEL // (2 + HAS_KEY)  # from query to value, and from value to key
    image, tile_row, tile_col, head_block = which_program(head_blocks)
    channel, exists = channels_of(head_block, num_heads, HEADS, D, HEAD_DIM, FULL)
    word, word_exists = channels_of(head_block, num_heads, HEADS, D // PACK, HEAD_DIM // PACK, FULL)
    pixels = tl.arange(0, P)[:, None]
    row = tile_row * ROWS + pixels // GROUPS
    first_col = (tile_col * GROUPS + pixels % GROUPS) * COLS

    pixel = row * width + first_col
    area = image * height * width
    projected = in_words(projected, PACK) + area * PIXEL
    first_seen = projected + ((pixel - BEFORE * width - BEFORE) * PIXEL + word)
    query = projected + (pixel * PIXEL + word)
    value = first_seen + PART
    key = first_seen + 2 * PART
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

    col_terms = ()  # [u · COLS + i]
    for u in tl.static_range(K):
        for i in tl.static_range(COLS):
            term = tl.zeros([P, HEADS], tl.float32)
            if HAS_POSITION:
                term = dot(queries[i], embedding(table, K + u, channel, exists, table_width, P, HEADS, D, VEC, FULL))
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
