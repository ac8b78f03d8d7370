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
    program = tl.program_id(0)
    pair = program // TILES
    tile = program % TILES
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    grad_scale = tl.cast(grad_scale, tl.float32)
    packed_start = image * packed_image + head * packed_head
    query = qkv + packed_start * UNIT
    key = qkv + (packed_start + packed_part) * UNIT
    value = qkv + (packed_start + packed_part + packed_part) * UNIT
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
    tl.store(share_part + program, tl.sum(row_delta))


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
    program = tl.program_id(0)
    pair = program // TILES
    tile = program % TILES
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    packed_place *= UNIT
    gradient_place *= UNIT
    grad_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    grad_scale = tl.cast(grad_scale, tl.float32)
    packed_start = image * packed_image + head * packed_head
    query = qkv + packed_start * UNIT
    key = qkv + (packed_start + packed_part) * UNIT
    value = qkv + (packed_start + packed_part + packed_part) * UNIT
    gradient += (image * gradient_image + head * gradient_head) * UNIT
    weights += head * TOKENS * weight_cols
    log_sum += pair.to(tl.int64) * TOKENS
    delta += pair.to(tl.int64) * TOKENS
    grad_start = image * grad_image + head * grad_head
    grad_key = grad_qkv + (grad_start + grad_part) * UNIT
    grad_value = grad_qkv + (grad_start + grad_part + grad_part) * UNIT
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
