# mypy: ignore-errors
"""The tiling `Dense`: tensor cores, for heads of 16 channels and more: a small tile of queries against its halo.

A tile of M = ROWS × COLS = 16 queries (2 × 8 for k = 7) sees HALO_ROWS × HALO_COLS keys (8 × 16, of which 8 × 14
count). One warp walks the halo, STEP rows of keys at a time. Of the 128 keys a query uses 49; the rest carry −∞ through
the position terms, one for the row and one for the column:

    logit[i, (a, b)] = q_i · k_ab + R[i, a] + C[i, b],   R[i, a] = q_i · r_{a − row(i)}  (−∞ outside the window)

R and C come from one small product q·table, shifted by each query's place in the tile. The table [2k, heads, d] is that
of `threads`, read here with rows and columns interleaved: 2t is row offset t, 2t + 1 column offset t.
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

from .threads import LOG2_E, LOWEST

LOWEST_TERM = tl.constexpr(-65504.0)  # of float16


@triton.jit
def which_program(num_heads, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Image and head of this program, row and column where its tile begins; then of each pixel of the tile [M, 1].

    These are its place in the tile, its row and its column. Neighbours in the grid read the same cache lines.
    """
    tile_col = tl.program_id(0) // num_heads
    image, head = tl.program_id(2).to(tl.int64), tl.program_id(0) % num_heads
    first_row, first_col = tl.program_id(1) * ROWS, tile_col * COLS
    place = tl.arange(0, ROWS * COLS)[:, None]
    return image, head, first_row, first_col, place, first_row + place // COLS, first_col + place % COLS


@triton.jit
def load_table(table, head, num_heads, K: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ENTRIES: tl.constexpr):
    """The embeddings of one head, [ENTRIES, D] in float32, rows and columns interleaved, zeros beyond entry 2k."""
    entry = tl.arange(0, ENTRIES)[:, None]
    channel = tl.arange(0, D)[None, :]
    offset = ((entry % 2) * K + entry // 2) * num_heads * HEAD_DIM + head * HEAD_DIM + channel
    return tl.load(table + offset, mask=(entry // 2 < K) & (channel < HEAD_DIM), other=0.0)


@triton.jit
def below_highest(terms, K: tl.constexpr, HALF: tl.constexpr, TERM_PARTS: tl.constexpr):
    """What terms [M, HALF] lack of their query's highest, as float16 keeps it."""
    terms = tl.where(tl.arange(0, HALF)[None, :] < K, terms, float("-inf"))
    terms = tl.maximum(terms - tl.max(terms, axis=1)[:, None], LOWEST_TERM)
    return terms.to(tl.float16).to(tl.float32) if TERM_PARTS == 1 else terms


@triton.jit
def terms_by_offset(
    query, embeddings, M: tl.constexpr, K: tl.constexpr, ENTRIES: tl.constexpr, TERM_PARTS: tl.constexpr
):
    """q·r of every row offset and of every column offset, two [M, ENTRIES / 2], below their highest.

    The embeddings enter as sums of two half-precision numbers, whose products with q are exact to float32's eyes.
    """
    HALF: tl.constexpr = ENTRIES // 2
    coarse = embeddings.to(query.dtype)
    fine = (embeddings - coarse.to(tl.float32)).to(query.dtype)
    products = tl.dot(query, tl.trans(coarse))
    products = tl.dot(query, tl.trans(fine), products)
    by_row, by_col = tl.split(tl.reshape(products, [M, HALF, 2]))
    return below_highest(by_row, K, HALF, TERM_PARTS), below_highest(by_col, K, HALF, TERM_PARTS)


@triton.jit
def shifted(by_offset, offset, inside, K: tl.constexpr, HALF: tl.constexpr):
    """by_offset[i, offset[i, a]] where 0 ≤ offset < k and the place is `inside`, −∞ elsewhere."""
    terms = tl.gather(by_offset, tl.minimum(tl.maximum(offset, 0), HALF - 1), 1)
    return tl.where((offset >= 0) & (offset < K) & inside, terms, float("-inf"))


@triton.jit
def over_rows(terms, M: tl.constexpr, STEP: tl.constexpr, HALO_COLS: tl.constexpr):
    """[M, HALO_COLS] for every one of STEP rows of the halo, [M, STEP · HALO_COLS]."""
    return tl.reshape(tl.broadcast_to(terms[:, None, :], [M, STEP, HALO_COLS]), [M, STEP * HALO_COLS])


@triton.jit
def terms_of_columns(
    by_col, place, first_col, width,
    K: tl.constexpr, BEFORE: tl.constexpr, COLS: tl.constexpr, HALO_COLS: tl.constexpr, HALF: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """C[i, b] of every column of the halo, [M, HALO_COLS]."""
    halo_col = tl.arange(0, HALO_COLS)[None, :]
    at_col = first_col - BEFORE + halo_col
    col_inside = (at_col >= 0) & (at_col < width) if MASK else at_col > -K
    return shifted(by_col, halo_col - place % COLS, col_inside, K, HALF)


@triton.jit
def terms_of_rows(by_row, offset, at_row, height, K: tl.constexpr, HALF: tl.constexpr, MASK: tl.constexpr):
    """R[i, a] of one step's rows of the halo, [M, STEP], in base 2."""
    row_inside = (at_row >= 0) & (at_row < height) if MASK else at_row > -K
    return shifted(by_row, offset, row_inside, K, HALF) * LOG2_E


@triton.jit
def first_halo(
    projected, first_row, first_col, width, part, pixel_step, channel,
    K: tl.constexpr, BEFORE: tl.constexpr, HEAD_DIM: tl.constexpr, COLS: tl.constexpr, HALO_COLS: tl.constexpr,
    N: tl.constexpr, HAS_KEY: tl.constexpr,
):  # fmt: skip
    """Of the halo's first step: its places and their rows [N, 1], what may be read of them, keys and values [N, D]."""
    halo = tl.arange(0, N)[:, None]
    key_at_col = first_col - BEFORE + halo % HALO_COLS
    key_at_row = first_row - BEFORE + halo // HALO_COLS
    readable = (key_at_col >= 0) & (key_at_col < width) & (halo % HALO_COLS < COLS + K - 1) & (channel < HEAD_DIM)
    first_seen = (key_at_row * width + key_at_col) * pixel_step + channel
    return halo, key_at_row, readable, projected + part + first_seen, projected + (1 + HAS_KEY) * part + first_seen


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
    channel = tl.arange(0, D)[None, :]
    image, head, first_row, first_col, place, row, col = which_program(num_heads, ROWS, COLS)
    inside = (row < height) & (col < width)
    pixel = row * width + col
    area = image * height * width
    part = num_heads * HEAD_DIM  # from query to key, and from key to value
    pixel_step = (2 + HAS_KEY) * part
    projected += area * pixel_step + head * HEAD_DIM
    queries = tl.load(projected + (pixel * pixel_step + channel), mask=inside & (channel < HEAD_DIM), other=0.0)

    by_row = tl.zeros([M, HALF], tl.float32)
    by_col = tl.zeros([M, HALF], tl.float32)
    if HAS_POSITION:
        embeddings = load_table(table, head, num_heads, K, HEAD_DIM, D, ENTRIES)
        by_row, by_col = terms_by_offset(queries, embeddings, M, K, ENTRIES, TERM_PARTS)
    halo_row = tl.arange(0, STEP)[None, :]
    col_terms = terms_of_columns(by_col, place, first_col, width, K, BEFORE, COLS, HALO_COLS, HALF, MASK)
    col_terms = over_rows(col_terms, M, STEP, HALO_COLS)

    _, key_at_row, readable, key, value = first_halo(
        projected, first_row, first_col, width, part, pixel_step, channel,
        K, BEFORE, HEAD_DIM, COLS, HALO_COLS, N, HAS_KEY,
    )  # fmt: skip
    at_row = first_row - BEFORE + halo_row
    offset = halo_row - place // COLS

    ones = tl.full([N, 8], 1.0, queries.dtype)
    top = tl.full([M], LOWEST, tl.float32)
    totals = tl.zeros([M, 8], tl.float32)  # eight times the same: a product has no fewer columns
    result = tl.zeros([M, D], tl.float32)
    for _ in range(0, HALO_ROWS, STEP):
        mask = readable & (key_at_row >= 0) & (key_at_row < height)
        row_terms = terms_of_rows(by_row, offset, at_row, height, K, HALF, MASK)
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
