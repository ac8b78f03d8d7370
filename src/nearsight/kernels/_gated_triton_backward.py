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

from ._gated_triton_shared import add_product, dot_rows, load_keys, load_rows, scaled, store_rows, zeros


@triton.jit(do_not_specialize=["num_heads"])
def by_rows(
    query, key, value, gradient, share, log_sum, grad_query, delta, share_part,
    query_image, query_head, query_place, key_image, key_head, key_place, value_image, value_head, value_place,
    gradient_image, gradient_head, gradient_place, grad_image, grad_head, grad_place,
    num_heads, logit_scale, grad_scale,
    TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile of queries against all keys: ∂query, Δ for the other kernel, and this tile's part of ∂share."""
    tiles: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    pair = program // tiles
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    row = program % tiles * ROWS + tl.arange(0, ROWS)
    at = pair.to(tl.int64) * TOKENS + row
    q = load_rows(query + image * query_image + head * query_head, row, query_place, TOKENS, HEAD_DIM, CHANNELS)
    keys = load_keys(key + image * key_image + head * key_head, key_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    gradient += image * gradient_image + head * gradient_head
    g = load_rows(gradient, row, gradient_place, TOKENS, HEAD_DIM, CHANNELS)
    values = load_keys(value + image * value_image + head * value_head, value_place, TOKENS, HEAD_DIM, CHANNELS, KEYS)
    log_total = tl.load(log_sum + at, mask=row < TOKENS, other=float("inf"))
    contents = ()
    changes = ()
    row_delta = tl.zeros([ROWS], tl.float32)
    for index in tl.static_range(len(KEYS)):
        content = tl.exp2(dot_rows(q, keys[index]) * logit_scale - log_total[:, None])
        if KEYS[index][0] + KEYS[index][1] > TOKENS:
            known = KEYS[index][0] + tl.arange(0, KEYS[index][1]) < TOKENS
            content = tl.where(known[None, :], content, 0.0)
        change = dot_rows(g, values[index])
        row_delta += tl.sum(content * change, axis=1)
        contents = contents + (content,)
        changes = changes + (change,)
    sums = zeros(ROWS, CHANNELS)
    for index in tl.static_range(len(KEYS)):
        score = contents[index] * (changes[index] - row_delta[:, None])
        sums = add_product(sums, score.to(q[0].dtype), keys[index])
    factor = tl.load(share + head) * grad_scale
    grad_query += image * grad_image + head * grad_head
    store_rows(grad_query, row, grad_place, scaled(sums, factor), TOKENS, HEAD_DIM, CHANNELS)
    tl.store(delta + at, row_delta, mask=row < TOKENS)
    tl.store(share_part + program, tl.sum(row_delta))


@triton.jit(do_not_specialize=["num_heads"])
def by_columns(
    query, key, value, gradient, weights, share, log_sum, delta, grad_key, grad_value,
    query_image, query_head, query_place, key_image, key_head, key_place, value_image, value_head, value_place,
    gradient_image, gradient_head, gradient_place, grad_image, grad_head, grad_place,
    grad_value_image, grad_value_head, grad_value_place, num_heads, weight_cols, logit_scale, grad_scale,
    TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """∂key and ∂value of a tile of ROWS keys, which meet the queries STEP at a time: everything is [keys, queries]."""
    tiles: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    program = tl.program_id(0)
    pair = program // tiles
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    row = program % tiles * ROWS + tl.arange(0, ROWS)
    query += image * query_image + head * query_head
    gradient += image * gradient_image + head * gradient_head
    weights += head * TOKENS * weight_cols
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    k = load_rows(key + image * key_image + head * key_head, row, key_place, TOKENS, HEAD_DIM, CHANNELS)
    v = load_rows(value + image * value_image + head * value_head, row, value_place, TOKENS, HEAD_DIM, CHANNELS)
    own_share = tl.load(share + head)
    half = k[0].dtype
    key_sums = zeros(ROWS, CHANNELS)
    value_sums = zeros(ROWS, CHANNELS)
    for start in range(0, TOKENS, STEP):
        at = start + tl.arange(0, STEP)
        q = load_rows(query, at, query_place, TOKENS, HEAD_DIM, CHANNELS)
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
    grad_key += image * grad_image + head * grad_head
    grad_value += image * grad_value_image + head * grad_value_head
    store_rows(grad_key, row, grad_place, scaled(key_sums, own_share * grad_scale), TOKENS, HEAD_DIM, CHANNELS)
    store_rows(grad_value, row, grad_value_place, value_sums, TOKENS, HEAD_DIM, CHANNELS)
