# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton joins tuples by + alone)
"""Triton kernels of the backend `joint`: content and position of a tile of queries (or keys) in one program.

Forward, over whole rows of keys:

    out[i] = share · softmax_j(scale · q_i · k_j) v + Σ_j P[i, j] v_j

P has the gate in it and no batch axis, share is 1 − σ(λ). A row of keys is short enough (256) to be held at once, so
the softmax needs no second pass, and position costs one addition to its weights before the one product with v.
Backward, with A = softmax(scale · q kᵀ), M = share · A + P the mixed weights and G = ∂out:

    D  = G vᵀ                    ∂v = Mᵀ G                    ∂share = Σ Δ
    Δ  = Σ_j A ∘ D  (each row)   ∂q = share · scale · S k,  ∂k = share · scale · Sᵀ q  where S = A ∘ (D − Δ)

Rows are whole, so Δ is a sum inside the program and the content's own output is never needed. Two kernels, by rows
(∂q) and by columns (∂k, ∂v), each recompute A and D; one program for an image and head that made them once took 0.51 ms
where these take 0.47. No atomics: the same bits on every run.

Matrices are tuples of tiles, so that odd sizes need little padding. A *span* is (start, width) with a power of two for
its width. The channels of a head are a tuple of spans, ((0, 32), (32, 16)) for 48 of them, and so are the keys of a
row, ((0, 128), (128, 64), (192, 16)) for 196: products run over the tuple, and 48 channels need not be padded to 64
nor 196 keys to 256 (`joint_plans` says which are). A matrix is a tuple of tiles, one for each span of channels.
Strides are given in units of UNIT elements, 8 where they allow it (see `stride_unit`).
"""

import triton
import triton.language as tl


@triton.jit
def which_program(PROGRAMS: tl.constexpr, num_heads):
    """Of a program: its image and head as one number, which of their PROGRAMS it is, the head and the image."""
    pair = tl.program_id(0) // PROGRAMS
    return pair, tl.program_id(0) % PROGRAMS, pair % num_heads, (pair // num_heads).to(tl.int64)


@triton.jit
def packed_starts(packed, image, head, packed_image, packed_head, packed_part, UNIT: tl.constexpr):
    """Where query, key and value (or their gradients) of an image and head begin."""
    start = image * packed_image + head * packed_head
    query = packed + start * UNIT
    key = packed + (start + packed_part) * UNIT
    value = packed + (start + packed_part + packed_part) * UNIT
    return query, key, value


@triton.jit
def load_rows(at, row, place, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr):
    """Rows `row` [R] of a [TOKENS, HEAD_DIM] matrix as tiles [R, span]; zeros where there is nothing."""
    tiles = ()
    for index in tl.static_range(len(CHANNELS)):
        channel = CHANNELS[index][0] + tl.arange(0, CHANNELS[index][1])
        known = (row < TOKENS)[:, None] & (channel < HEAD_DIM)[None, :]
        tiles = tiles + (tl.load(at + row[:, None] * place + channel[None, :], mask=known, other=0.0),)
    return tiles


@triton.jit
def store_rows(at, row, place, tiles, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr):
    for index in tl.static_range(len(CHANNELS)):
        channel = CHANNELS[index][0] + tl.arange(0, CHANNELS[index][1])
        known = (row < TOKENS)[:, None] & (channel < HEAD_DIM)[None, :]
        tl.store(at + row[:, None] * place + channel[None, :], tiles[index].to(at.dtype.element_ty), mask=known)


@triton.jit
def load_keys(at, place, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr):
    """The whole [TOKENS, HEAD_DIM] matrix: for each span of keys its tiles."""
    matrix = ()
    for index in tl.static_range(len(KEYS)):
        row = KEYS[index][0] + tl.arange(0, KEYS[index][1])
        matrix = matrix + (load_rows(at, row, place, TOKENS, HEAD_DIM, CHANNELS),)
    return matrix


@triton.jit
def load_weights(at, row, cols, TOKENS: tl.constexpr, KEYS: tl.constexpr):
    """Rows `row` of the positional weights [TOKENS, cols] as tiles [R, span of keys]."""
    tiles = ()
    for index in tl.static_range(len(KEYS)):
        col = KEYS[index][0] + tl.arange(0, KEYS[index][1])
        known = (row < TOKENS)[:, None] & (col < cols)[None, :]
        tiles = tiles + (tl.load(at + row[:, None] * cols + col[None, :], mask=known, other=0.0),)
    return tiles


@triton.jit
def dot_rows(left, right):
    """left · rightᵀ over all channels: tiles [R, span] and [S, span] → [R, S]."""
    product = tl.dot(left[0], tl.trans(right[0]))
    for index in tl.static_range(1, len(left)):
        product = tl.dot(left[index], tl.trans(right[index]), product)
    return product


@triton.jit
def add_product(sums, left, right):
    """sums + left · right for every channel span: left [R, S], right tiles [S, span], sums tiles [R, span]."""
    results = ()
    for index in tl.static_range(len(right)):
        results = results + (tl.dot(left, right[index], sums[index]),)
    return results


@triton.jit
def _blank(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def zeros(ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    tiles = ()
    for index in tl.static_range(len(CHANNELS)):
        tiles = tiles + (_blank(ROWS, CHANNELS[index][1]),)
    return tiles


@triton.jit
def scaled(tiles, factor):
    results = ()
    for index in tl.static_range(len(tiles)):
        results = results + (tiles[index] * factor,)
    return results


@triton.jit
def attend(
    query, key, value, weights, share, logit_scale,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile of queries (tiles [ROWS, span]) against all keys: output tiles and the log-sum-exp, in base 2."""
    logits = ()
    for index in tl.static_range(len(KEYS)):
        logit = dot_rows(query, key[index])
        if KEYS[index][0] + KEYS[index][1] > TOKENS:
            known = KEYS[index][0] + tl.arange(0, KEYS[index][1]) < TOKENS
            logit = tl.where(known[None, :], logit, float("-inf"))
        logits = logits + (logit,)
    peak = tl.max(logits[0], axis=1)
    for index in tl.static_range(1, len(KEYS)):
        peak = tl.maximum(peak, tl.max(logits[index], axis=1))
    peak = peak * logit_scale

    powers = ()
    for index in tl.static_range(len(KEYS)):
        powers = powers + (tl.exp2(logits[index] * logit_scale - peak[:, None]),)
    total = tl.sum(powers[0], axis=1)
    for index in tl.static_range(1, len(KEYS)):
        total = total + tl.sum(powers[index], axis=1)
    factor = (share / total)[:, None]

    sums = zeros(ROWS, CHANNELS)
    half = value[0][0].dtype
    for index in tl.static_range(len(KEYS)):
        mixed = powers[index] * factor + weights[index].to(tl.float32)
        sums = add_product(sums, mixed.to(half), value[index])
    return sums, peak + tl.log2(total)


@triton.jit(do_not_specialize=["num_heads"])
def over_tiles(
    qkv, weights, share, output, log_sum,
    packed_image, packed_head, packed_place, packed_part, output_image, output_head, output_place,
    num_heads, weight_cols, logit_scale,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """GROUPS programs for an image and head take TILES tiles of queries each.

    Keys and values are loaded once for a program's tiles.
    """
    pair, group, head, image = which_program(GROUPS, num_heads)
    packed_place *= UNIT
    output_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    query, key, value = packed_starts(qkv, image, head, packed_image, packed_head, packed_part, UNIT)
    output += (image * output_image + head * output_head) * UNIT
    log_sum += pair.to(tl.int64) * TOKENS
    weights += head * TOKENS * weight_cols
    keys = load_keys(key, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    values = load_keys(value, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    own_share = tl.load(share + head)
    for tile in range(TILES):
        row = (group * TILES + tile) * ROWS + tl.arange(0, ROWS)
        q = load_rows(query, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
        p = load_weights(weights, row, weight_cols, TOKENS, KEYS)
        sums, log_total = attend(q, keys, values, p, own_share, logit_scale, TOKENS, CHANNELS, KEYS, ROWS)
        store_rows(output, row, output_place, sums, TOKENS, HEAD_DIM, CHANNELS)
        if KEEP:
            tl.store(log_sum + row, log_total, mask=row < TOKENS)


@triton.jit
def row_scores(
    query, keys, gradient, values, log_total, logit_scale,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """S of ROWS queries for each span of keys, [ROWS, span]; and Δ."""
    contents = ()
    changes = ()
    row_delta = tl.zeros([ROWS], tl.float32)
    for index in tl.static_range(len(KEYS)):
        content = tl.exp2(dot_rows(query, keys[index]) * logit_scale - log_total[:, None])
        if KEYS[index][0] + KEYS[index][1] > TOKENS:
            known = KEYS[index][0] + tl.arange(0, KEYS[index][1]) < TOKENS
            content = tl.where(known[None, :], content, 0.0)
        change = dot_rows(gradient, values[index])
        row_delta += tl.sum(content * change, axis=1)
        contents = contents + (content,)
        changes = changes + (change,)
    scores = ()
    for index in tl.static_range(len(KEYS)):
        scores = scores + (contents[index] * (changes[index] - row_delta[:, None]),)
    return scores, row_delta


@triton.jit(do_not_specialize=["num_heads"])
def by_rows(
    qkv, gradient, share, log_sum, grad_qkv, delta, share_part,
    packed_image, packed_head, packed_place, packed_part, gradient_image, gradient_head, gradient_place,
    grad_image, grad_head, grad_place, num_heads, logit_scale, grad_scale,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A tile of queries against all keys: ∂query, Δ for the other kernel, and this program's part of ∂share.

    An image and head have TILES programs.
    """
    pair, tile, head, image = which_program(TILES, num_heads)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    grad_scale = tl.cast(grad_scale, tl.float32)
    query, key, value = packed_starts(qkv, image, head, packed_image, packed_head, packed_part, UNIT)
    gradient += (image * gradient_image + head * gradient_head) * UNIT
    grad_query = grad_qkv + (image * grad_image + head * grad_head) * UNIT
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    keys = load_keys(key, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    values = load_keys(value, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    factor = tl.load(share + head) * grad_scale
    row = tile * ROWS + tl.arange(0, ROWS)
    q = load_rows(query, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    g = load_rows(gradient, row, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
    log_total = tl.load(log_sum + row, mask=row < TOKENS, other=float("inf"))
    scores, row_delta = row_scores(q, keys, g, values, log_total, logit_scale, TOKENS, KEYS, ROWS)
    sums = zeros(ROWS, CHANNELS)
    for index in tl.static_range(len(KEYS)):
        sums = add_product(sums, scores[index].to(q[0].dtype), keys[index])
    store_rows(grad_query, row, grad_place, scaled(sums, factor), TOKENS, HEAD_DIM, CHANNELS)
    tl.store(delta + row, row_delta, mask=row < TOKENS)
    tl.store(share_part + tl.program_id(0), tl.sum(row_delta))


@triton.jit(do_not_specialize=["num_heads"])
def by_columns(
    qkv, gradient, weights, share, log_sum, delta, grad_qkv,
    packed_image, packed_head, packed_place, packed_part, gradient_image, gradient_head, gradient_place,
    grad_image, grad_head, grad_place, grad_part, num_heads, weight_cols, logit_scale, grad_scale,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value of a tile of ROWS keys, which meet the queries STEP at a time. Everything is [keys, queries].

    An image and head have TILES programs.
    """
    pair, tile, head, image = which_program(TILES, num_heads)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    grad_scale = tl.cast(grad_scale, tl.float32)
    query, key, value = packed_starts(qkv, image, head, packed_image, packed_head, packed_part, UNIT)
    gradient += (image * gradient_image + head * gradient_head) * UNIT
    weights += head * TOKENS * weight_cols
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    _, grad_key, grad_value = packed_starts(grad_qkv, image, head, grad_image, grad_head, grad_part, UNIT)
    own_share = tl.load(share + head)
    row = tile * ROWS + tl.arange(0, ROWS)
    k = load_rows(key, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    v = load_rows(value, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    half = k[0].dtype
    key_sums = zeros(ROWS, CHANNELS)
    value_sums = zeros(ROWS, CHANNELS)
    for start in range(0, TOKENS, STEP):
        at = start + tl.arange(0, STEP)
        q = load_rows(query, at, packed_place, TOKENS, HEAD_DIM, CHANNELS)
        g = load_rows(gradient, at, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
        known = (at < TOKENS)[:, None] & (row < weight_cols)[None, :]
        p = tl.load(weights + at[:, None] * weight_cols + row[None, :], mask=known, other=0.0)
        log_total = tl.load(log_sum + at, mask=at < TOKENS, other=float("inf"))
        row_delta = tl.load(delta + at, mask=at < TOKENS, other=0.0)
        content = tl.exp2(dot_rows(k, q) * logit_scale - log_total[None, :])
        mixed = content * own_share + tl.trans(p).to(tl.float32)
        value_sums = add_product(value_sums, mixed.to(half), g)
        score = content * (dot_rows(v, g) - row_delta[None, :])
        key_sums = add_product(key_sums, score.to(half), q)
    store_rows(grad_key, row, grad_place, scaled(key_sums, own_share * grad_scale), TOKENS, HEAD_DIM, CHANNELS)
    store_rows(grad_value, row, grad_place, value_sums, TOKENS, HEAD_DIM, CHANNELS)
