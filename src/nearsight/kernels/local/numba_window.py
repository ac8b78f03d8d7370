# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""What local attention's loops do with one window, or 16 of them: products with keys, softmax, sums over keys.

A window's keys are counted by m: m = 0 … count − 1 over its rows a and columns b that are inside the image.
"""

import numpy as np

from ..numba_vectors import add, div, exp, fma, get, load, maximum, mul, put, splat, store, sub, zeros
from ..sizes import LANES
from .numba_maps import njit

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST, OUTSIDE = np.float32(-3e38), np.float32(-1e30)


@njit
def add_products(scratch, target, vectors, step, map_at, offsets, count, channel_size, channels):
    """target[m] += Σ_c vector[c] · map[c] at offset m; four channels at once, so that vectors stay in registers."""
    c = 0
    while c < channels:
        at, vector = map_at + c * channel_size, vectors + c * step
        together = 4 if c + 4 <= channels else 1
        x0 = load(scratch, vector)
        if together == 4:
            x1, x2, x3 = (
                load(scratch, vector + step),
                load(scratch, vector + 2 * step),
                load(scratch, vector + 3 * step),
            )
            for m in range(count):
                place = at + get(offsets, m)
                y = fma(x0, load(scratch, place), load(scratch, target + m * LANES))
                y = fma(x1, load(scratch, place + channel_size), y)
                y = fma(x2, load(scratch, place + 2 * channel_size), y)
                y = fma(x3, load(scratch, place + 3 * channel_size), y)
                store(scratch, target + m * LANES, y)
        else:
            for m in range(count):
                y = fma(x0, load(scratch, at + get(offsets, m)), load(scratch, target + m * LANES))
                store(scratch, target + m * LANES, y)
        c += together


@njit
def weighted_sums(scratch, target, weights, map_at, offsets, count, channel_size, channels, scale):
    """target[c] = scale · Σ_m weight[m] · map[c] at offset m; four channels at once, so that a weight is read once."""
    c = 0
    while c < channels:
        at = map_at + c * channel_size
        y0, y1, y2, y3 = zeros(), zeros(), zeros(), zeros()
        together = 4 if c + 4 <= channels else 1
        if together == 4:
            for m in range(count):
                weight, place = load(scratch, weights + m * LANES), at + get(offsets, m)
                y0 = fma(weight, load(scratch, place), y0)
                y1 = fma(weight, load(scratch, place + channel_size), y1)
                y2 = fma(weight, load(scratch, place + 2 * channel_size), y2)
                y3 = fma(weight, load(scratch, place + 3 * channel_size), y3)
            store(scratch, target + (c + 1) * LANES, mul(y1, scale))
            store(scratch, target + (c + 2) * LANES, mul(y2, scale))
            store(scratch, target + (c + 3) * LANES, mul(y3, scale))
        else:
            for m in range(count):
                y0 = fma(load(scratch, weights + m * LANES), load(scratch, at + get(offsets, m)), y0)
        store(scratch, target + c * LANES, mul(y0, scale))
        c += together


@njit
def add_back(scratch, map_at, weights, vectors, blocks, k, steps, channels):
    """map[c] at pixel p += Σ_b weight[b] · vector[c] at the query that has p in column b of its window.

    A row of the map and a row of queries at a time. To add each query's share where its keys are would be the same
    sum, but neighbouring queries' keys overlap, and a processor waits long for what it has just stored in part.
    """
    _, _, _, channel_size, padded_row, stride = steps
    for block in range(blocks):
        p = block * LANES
        c = 0
        while c < channels:
            at, vector = map_at + c * channel_size + p, vectors + c * padded_row + p
            together = 4 if c + 4 <= channels else 1
            y0 = load(scratch, at)
            if together == 4:
                y1 = load(scratch, at + channel_size)
                y2 = load(scratch, at + 2 * channel_size)
                y3 = load(scratch, at + 3 * channel_size)
                for b in range(k):
                    query = (k - 1 - b) * stride
                    weight = load(scratch, weights + b * padded_row + p + query)
                    y0 = fma(weight, load(scratch, vector + query), y0)
                    y1 = fma(weight, load(scratch, vector + padded_row + query), y1)
                    y2 = fma(weight, load(scratch, vector + 2 * padded_row + query), y2)
                    y3 = fma(weight, load(scratch, vector + 3 * padded_row + query), y3)
                store(scratch, at + channel_size, y1)
                store(scratch, at + 2 * channel_size, y2)
                store(scratch, at + 3 * channel_size, y3)
            else:
                for b in range(k):
                    query = (k - 1 - b) * stride
                    y0 = fma(load(scratch, weights + b * padded_row + p + query), load(scratch, vector + query), y0)
            store(scratch, at, y0)
            c += together


@njit
def softmax(scratch, weights, count, step):
    """e^(logit − largest logit) in place of the logits, `step` numbers apart; 1 / their sum."""
    top, total = splat(LOWEST), zeros()
    for m in range(count):
        top = maximum(top, load(scratch, weights + m * step))
    for m in range(count):
        weight = exp(sub(load(scratch, weights + m * step), top))
        store(scratch, weights + m * step, weight)
        total = add(total, weight)
    return div(splat(ONE), total)


@njit
def window_weights(scratch, offsets, places, rows, cols, embeddings, window, steps, key_channels):
    """e^(logit − largest logit) of every key of a window and 1 / their sum; how many keys there are.

    `places` in scratch: the query and the step between its channels, keys, by column, weights. `rows` and `cols`: first
    and last of the window that count.
    """
    query, query_step, keys, by_col, weights = places
    row_embedding, col_embedding, set_at, half = embeddings
    place, outside = window
    _, _, _, channel_size, padded_row, stride = steps
    for b in range(cols[0], cols[1]):
        y = load(scratch, outside + b * LANES)
        for c in range(half):
            embedded = splat(get(col_embedding, set_at + b * half + c))
            y = fma(load(scratch, query + (half + c) * query_step), embedded, y)
        store(scratch, by_col + b * LANES, y)
    count = 0
    for a in range(rows[0], rows[1]):
        y = zeros()
        for c in range(half):
            embedded = splat(get(row_embedding, set_at + a * half + c))
            y = fma(load(scratch, query + c * query_step), embedded, y)
        for b in range(cols[0], cols[1]):
            store(scratch, weights + count * LANES, add(y, load(scratch, by_col + b * LANES)))
            put(offsets, count, place + a * padded_row + b * stride)
            count += 1
    add_products(scratch, weights, query, query_step, keys, offsets, count, channel_size, key_channels)
    return count, softmax(scratch, weights, count, LANES)


@njit
def mark_outside(scratch, outside, blocks, width, k, mask):
    """What each lane's logits get for a column of the window: −10³⁰ where it lies beyond the image."""
    before = (k - 1) // 2
    for block in range(blocks):
        for b in range(k):
            for lane in range(LANES):
                col = block * LANES + lane + b - before
                beyond = mask and (col < 0 or col >= width)
                put(scratch, outside + (block * k + b) * LANES + lane, OUTSIDE if beyond else ZERO)


@njit
def inside(place, k, length, mask):
    """First and last of a window's rows (or columns) that count, for a query at this place of an axis."""
    before = (k - 1) // 2
    return (max(0, before - place), min(k, length - place + before)) if mask else (0, k)
