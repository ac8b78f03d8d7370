# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton joins tuples by + alone)
"""GPSA's backward kernels. With A = softmax(scale · q kᵀ), M = share · A + P the mixed weights and G = ∂out:

    D  = G vᵀ                    ∂v = Mᵀ G                    ∂share = Σ Δ
    Δ  = Σ_j A ∘ D  (each row)   ∂q = share · scale · S k,  ∂k = share · scale · Sᵀ q  where S = A ∘ (D − Δ)

Rows are whole, so Δ is a sum inside the program and the content's own output is never needed. Two kernels, by rows
(∂q) and by columns (∂k, ∂v), each recompute A and D; one program for an image and head that made them once took 0.51 ms
where these take 0.47. No atomics: the same bits on every run.
"""

import triton
import triton.language as tl

from ._gated_triton_shared import (
    add_across,
    add_product,
    dot_rows,
    load_keys,
    load_rows,
    scaled,
    store_across,
    store_rows,
    zeros,
    zeros_across,
)  # fmt: skip


@triton.jit
def row_scores(
    query, keys, gradient, values, log_total, logit_scale,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """S of ROWS queries for each span of keys, [ROWS, span] or, ACROSS, [span, ROWS]; and Δ."""
    over_keys: tl.constexpr = 0 if ACROSS else 1
    contents = ()
    changes = ()
    row_delta = tl.zeros([ROWS], tl.float32)
    for index in tl.static_range(len(KEYS)):
        logit = dot_rows(keys[index], query) if ACROSS else dot_rows(query, keys[index])
        content = tl.exp2(logit * logit_scale - tl.expand_dims(log_total, over_keys))
        if KEYS[index][0] + KEYS[index][1] > TOKENS:
            known = KEYS[index][0] + tl.arange(0, KEYS[index][1]) < TOKENS
            content = tl.where(tl.expand_dims(known, 1 - over_keys), content, 0.0)
        change = dot_rows(values[index], gradient) if ACROSS else dot_rows(gradient, values[index])
        row_delta += tl.sum(content * change, axis=over_keys)
        contents = contents + (content,)
        changes = changes + (change,)
    scores = ()
    for index in tl.static_range(len(KEYS)):
        scores = scores + (contents[index] * (changes[index] - tl.expand_dims(row_delta, over_keys)),)
    return scores, row_delta


@triton.jit(do_not_specialize=["num_heads"])
def by_rows(
    query, key, value, gradient, share, log_sum, grad_query, delta, share_part,
    packed_image, packed_head, packed_place, gradient_image, gradient_head, gradient_place,
    grad_image, grad_head, grad_place, num_heads, logit_scale, grad_scale,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """A tile of queries against all keys: ∂query, Δ for the other kernel, and this program's part of ∂share.

    An image and head have TILES programs; the last one also takes the TAIL rows after.
    """
    program = tl.program_id(0)
    pair = program // TILES
    tile = program % TILES
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    packed_start = (image * packed_image + head * packed_head) * UNIT
    query += packed_start
    gradient += (image * gradient_image + head * gradient_head) * UNIT
    grad_query += (image * grad_image + head * grad_head) * UNIT
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    keys = load_keys(key + packed_start, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    values = load_keys(value + packed_start, packed_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    factor = tl.load(share + head) * grad_scale
    share_part += pair * (TILES + (TAIL > 0)) + tile
    if TAIL > 0:  # noqa: SIM102 (known when compiled, unlike the second)
        if tile == TILES - 1:  # before the tile: after it, it would take more registers
            last = TILES * ROWS + tl.arange(0, TAIL)
            few = load_rows(query, last, packed_place, TOKENS, HEAD_DIM, CHANNELS)
            few_g = load_rows(gradient, last, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
            log_some = tl.load(log_sum + last, mask=last < TOKENS, other=float("inf"))
            some, some_delta = row_scores(few, keys, few_g, values, log_some, logit_scale, TOKENS, KEYS, TAIL, True)
            few_sums = zeros_across(TAIL, CHANNELS)
            for index in tl.static_range(len(KEYS)):
                few_sums = add_across(few_sums, keys[index], some[index].to(few[0].dtype))
            store_across(grad_query, last, grad_place, scaled(few_sums, factor), TOKENS, HEAD_DIM, CHANNELS)
            tl.store(delta + last, some_delta, mask=last < TOKENS)
            tl.store(share_part + 1, tl.sum(some_delta))
    row = tile * ROWS + tl.arange(0, ROWS)
    q = load_rows(query, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    g = load_rows(gradient, row, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
    log_total = tl.load(log_sum + row, mask=row < TOKENS, other=float("inf"))
    scores, row_delta = row_scores(q, keys, g, values, log_total, logit_scale, TOKENS, KEYS, ROWS, False)
    sums = zeros(ROWS, CHANNELS)
    for index in tl.static_range(len(KEYS)):
        sums = add_product(sums, scores[index].to(q[0].dtype), keys[index])
    store_rows(grad_query, row, grad_place, scaled(sums, factor), TOKENS, HEAD_DIM, CHANNELS)
    tl.store(delta + row, row_delta, mask=row < TOKENS)
    tl.store(share_part, tl.sum(row_delta))


@triton.jit
def tile_columns(
    query, key, value, gradient, weights, log_sum, delta, grad_key, grad_value, row,
    packed_place, gradient_place, grad_place, weight_cols, own_share, logit_scale, grad_scale,
    TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Keys `row` [ROWS] of one image and head, at which the pointers stand. Everything is [keys, queries]."""
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
        if ADD:
            mixed = content * own_share + tl.trans(p).to(tl.float32)
            value_sums = add_product(value_sums, mixed.to(half), g)
        else:
            value_sums = add_product(value_sums, (content * own_share).to(half), g)
            value_sums = add_product(value_sums, tl.trans(p), g)
        score = content * (dot_rows(v, g) - row_delta[None, :])
        key_sums = add_product(key_sums, score.to(half), q)
    store_rows(grad_key, row, grad_place, scaled(key_sums, own_share * grad_scale), TOKENS, HEAD_DIM, CHANNELS)
    store_rows(grad_value, row, grad_place, value_sums, TOKENS, HEAD_DIM, CHANNELS)


@triton.jit
def few_columns(
    query, key, value, gradient, weights, log_sum, delta, grad_key, grad_value, row,
    packed_place, gradient_place, grad_place, weight_cols, own_share, logit_scale, grad_scale,
    TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The same for few keys, across: everything is [queries, keys]."""
    k = load_rows(key, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    v = load_rows(value, row, packed_place, TOKENS, HEAD_DIM, CHANNELS)
    half = k[0].dtype
    key_sums = zeros_across(ROWS, CHANNELS)
    value_sums = zeros_across(ROWS, CHANNELS)
    for start in range(0, TOKENS, STEP):
        at = start + tl.arange(0, STEP)
        q = load_rows(query, at, packed_place, TOKENS, HEAD_DIM, CHANNELS)
        g = load_rows(gradient, at, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
        known = (at < TOKENS)[:, None] & (row < weight_cols)[None, :]
        p = tl.load(weights + at[:, None] * weight_cols + row[None, :], mask=known, other=0.0)
        log_total = tl.load(log_sum + at, mask=at < TOKENS, other=float("inf"))
        row_delta = tl.load(delta + at, mask=at < TOKENS, other=0.0)
        content = tl.exp2(dot_rows(q, k) * logit_scale - log_total[:, None])
        mixed = content * own_share + p.to(tl.float32)
        value_sums = add_across(value_sums, g, mixed.to(half))
        score = content * (dot_rows(g, v) - row_delta[:, None])
        key_sums = add_across(key_sums, q, score.to(half))
    store_across(grad_key, row, grad_place, scaled(key_sums, own_share * grad_scale), TOKENS, HEAD_DIM, CHANNELS)
    store_across(grad_value, row, grad_place, value_sums, TOKENS, HEAD_DIM, CHANNELS)


@triton.jit(do_not_specialize=["num_heads"])
def by_columns(
    query, key, value, gradient, weights, share, log_sum, delta, grad_key, grad_value,
    packed_image, packed_head, packed_place, gradient_image, gradient_head, gradient_place,
    grad_image, grad_head, grad_place, num_heads, weight_cols, logit_scale, grad_scale,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, ADD: tl.constexpr, TILES: tl.constexpr, TAIL: tl.constexpr, TAIL_CHANNELS: tl.constexpr,
    TAIL_STEP: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value of a tile of ROWS keys, which meet the queries STEP at a time.

    An image and head have TILES programs, and one more for the TAIL keys after.
    """
    programs: tl.constexpr = TILES + (TAIL > 0)
    program = tl.program_id(0)
    pair = program // programs
    tile = program % programs
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    packed_start = (image * packed_image + head * packed_head) * UNIT
    query += packed_start
    key += packed_start
    value += packed_start
    gradient += (image * gradient_image + head * gradient_head) * UNIT
    weights += head * TOKENS * weight_cols
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    grad_start = (image * grad_image + head * grad_head) * UNIT
    grad_key += grad_start
    grad_value += grad_start
    own_share = tl.load(share + head)
    if tile < TILES:
        tile_columns(
            query, key, value, gradient, weights, log_sum, delta, grad_key, grad_value,
            tile * ROWS + tl.arange(0, ROWS),
            packed_place, gradient_place, grad_place, weight_cols, own_share, logit_scale, grad_scale,
            TOKENS, HEAD_DIM, CHANNELS, ROWS, STEP, ADD,
        )  # fmt: skip
    elif TAIL > 0:
        few_columns(
            query, key, value, gradient, weights, log_sum, delta, grad_key, grad_value,
            TILES * ROWS + tl.arange(0, TAIL),
            packed_place, gradient_place, grad_place, weight_cols, own_share, logit_scale, grad_scale,
            TOKENS, HEAD_DIM, TAIL_CHANNELS, TAIL, TAIL_STEP,
        )  # fmt: skip
