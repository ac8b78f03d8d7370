# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton joins tuples by + alone)
"""GPSA's forward kernels: content and position of a tile of queries in one program, over whole rows of keys.

    out[i] = share · softmax_j(scale · q_i · k_j) v + Σ_j P[i, j] v_j

P has the gate in it and no batch axis, share is 1 − σ(λ). A row of keys is short enough (256) to be held at once, so
the softmax needs no second pass, and position costs one addition to its weights before the one product with v.
"""

import triton
import triton.language as tl

from ._gated_triton_shared import add_product, dot_rows, load_keys, load_rows, load_weights, store_rows, zeros


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
    program = tl.program_id(0)
    pair = program // GROUPS
    group = program % GROUPS
    head = pair % num_heads
    image = (pair // num_heads).to(tl.int64)
    packed_place *= UNIT
    output_place *= UNIT
    logit_scale = tl.cast(logit_scale, tl.float32)  # torch.compile passes float64
    packed_start = image * packed_image + head * packed_head
    query = qkv + packed_start * UNIT
    key = qkv + (packed_start + packed_part) * UNIT
    value = qkv + (packed_start + packed_part + packed_part) * UNIT
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
