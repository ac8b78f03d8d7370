# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""Local attention's loops for a CPU, compiled by numba: 16 queries at a time, no window copied.

One head's keys and values lie channel by channel in a padded map. The 16 lanes of a vector are 16 neighbouring pixels
of a row, or, where maps are small and batches large (`by_image`), the same pixel of 16 images. Either way the key at an
offset of the window is one vector, found by adding a number to the query's place. A task is one head of one image (or
of 16); tasks share nothing that is written, so that any number of threads gives the same bits.

All arrays are flat. `sizes` is (batch, height, width, parts, heads, channels, k, sets of embeddings), parts are query,
key (unless parts is 2) and value. `scratch` holds what a task needs, zeros at first.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..numba_vectors import add, div, exp, fma, get, load, maximum, mul, put, splat, store, sub, zeros
from ..sizes import LANES

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST, OUTSIDE = np.float32(-3e38), np.float32(-1e30)


def _cached(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, by way of numba's cache on the disk where there is a folder for one."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for a cache can be written
        return njit(nogil=True)(function)


@njit
def _read_lanes(target, at, source, place, lane_step, lanes, channels):
    """Up to 16 pixels' channels, one vector for each channel; zeros in the lanes that are left."""
    for lane in range(LANES):
        for c in range(channels):
            value = get(source, place + lane * lane_step + c) if lane < lanes else ZERO
            put(target, at + c * LANES + lane, value)


@njit
def _write_lanes(target, place, lane_step, source, at, lanes, channels):
    for lane in range(lanes):
        for c in range(channels):
            put(target, place + lane * lane_step + c, get(source, at + c * LANES + lane))


@njit
def _map_in(target, at, source, place, steps, lanes, height, width, channels):
    """A head's channels of whole images into the inner part of a padded map; zeros in the lanes that are left."""
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    for lane in range(stride):
        for i in range(height):
            for j in range(width):
                inner = at + i * padded_row + j * stride + lane
                pixel = place + lane * image_step + i * row_step + j * pixel_step
                for c in range(channels):
                    put(target, inner + c * channel_size, get(source, pixel + c) if lane < lanes else ZERO)


@njit
def _map_out(target, place, steps, source, at, lanes, height, width, channels):
    """The inner part of a padded map back to where the images' channels lie."""
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    for lane in range(lanes):
        for i in range(height):
            for j in range(width):
                inner = at + i * padded_row + j * stride + lane
                pixel = place + lane * image_step + i * row_step + j * pixel_step
                for c in range(channels):
                    put(target, pixel + c, get(source, inner + c * channel_size))


@njit
def _dot(scratch, vectors, at, channel_size, channels, start):
    """start + Σ_c of the query's vectors with a map's at one place."""
    for c in range(channels):
        start = fma(load(scratch, vectors + c * LANES), load(scratch, at + c * channel_size), start)
    return start


@njit
def _window_weights(scratch, offsets, places, rows, cols, embeddings, window, steps, sizes):
    """e^(logit − largest logit) of every key of a window and 1 / their sum; how many keys there are.

    `places` in scratch: queries, keys, by column, weights. `rows` and `cols`: first and last of the window that count.
    """
    query, keys, by_col, weights = places
    row_embedding, col_embedding, set_at, has_position = embeddings
    place, outside = window
    _, _, _, channel_size, padded_row, stride = steps
    parts, channels = sizes[3], sizes[5]
    half = channels // 2
    for b in range(cols[0], cols[1]):
        y = load(scratch, outside + b * LANES)
        if has_position:
            for c in range(half):
                embedded = splat(get(col_embedding, set_at + b * half + c))
                y = fma(load(scratch, query + (half + c) * LANES), embedded, y)
        store(scratch, by_col + b * LANES, y)
    count = 0
    top = splat(LOWEST)
    for a in range(rows[0], rows[1]):
        y = zeros()
        if has_position:
            for c in range(half):
                y = fma(load(scratch, query + c * LANES), splat(get(row_embedding, set_at + a * half + c)), y)
        for b in range(cols[0], cols[1]):
            offset = place + a * padded_row + b * stride
            logit = add(y, load(scratch, by_col + b * LANES))
            if parts == 3:
                logit = _dot(scratch, query, keys + offset, channel_size, channels, logit)
            store(scratch, weights + count * LANES, logit)
            top = maximum(top, logit)
            put(offsets, count, offset)
            count += 1
    total = zeros()
    for m in range(count):
        weight = exp(sub(load(scratch, weights + m * LANES), top))
        store(scratch, weights + m * LANES, weight)
        total = add(total, weight)
    return count, div(splat(ONE), total)


@njit
def _mark_outside(scratch, outside, blocks, width, k, mask, by_image):
    """What each lane's logits get for a column of the window: −10³⁰ where it lies beyond the image."""
    before = (k - 1) // 2
    for block in range(blocks):
        for b in range(k):
            for lane in range(LANES):
                col = block * LANES + lane + b - before
                beyond = mask and not by_image and (col < 0 or col >= width)
                put(scratch, outside + (block * k + b) * LANES + lane, OUTSIDE if beyond else ZERO)


@njit
def _layout(sizes, by_image):
    """Steps between images, rows and pixels of the projection, and a map's channels, rows and pixels; blocks of 16."""
    _, height, width, parts, heads, channels, k, _ = sizes
    stride = LANES if by_image else 1
    blocks = width if by_image else (width + LANES - 1) // LANES
    padded_row = ((width if by_image else blocks * LANES) + k - 1) * stride
    pixel_step = parts * heads * channels
    steps = (
        height * width * pixel_step,
        width * pixel_step,
        pixel_step,
        (height + k - 1) * padded_row,
        padded_row,
        stride,
    )
    return steps, blocks


@_cached
def forward(projected, row_embedding, col_embedding, output, scratch, offsets, sizes, mask, by_image, first, last):
    """output [batch, height, width, heads, channels] of tasks first … last."""
    batch, height, width, parts, heads, channels, k, sets = sizes
    steps, blocks = _layout(sizes, by_image)
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    before, half = (k - 1) // 2, channels // 2
    has_position = len(row_embedding) > 0
    inner = before * padded_row + before * stride
    keys, values = 0, channels * channel_size
    query = 2 * channels * channel_size
    by_col = query + channels * LANES
    weights = by_col + k * LANES
    outside = weights + k * k * LANES
    _mark_outside(scratch, outside, blocks, width, k, mask, by_image)
    for task in range(first, last):
        group, head = task // heads, task % heads
        image = group * stride
        lanes_of_map = min(stride, batch - image)
        start = image * image_step + head * channels
        embeddings = (row_embedding, col_embedding, head * k * half if sets > 1 else 0, has_position)
        value_part = (parts - 1) * heads * channels
        _map_in(scratch, values + inner, projected, start + value_part, steps, lanes_of_map, height, width, channels)
        if parts == 3:
            key_part = heads * channels
            _map_in(scratch, keys + inner, projected, start + key_part, steps, lanes_of_map, height, width, channels)
        for i in range(height):
            rows = (max(0, before - i), min(k, height - i + before)) if mask else (0, k)
            for block in range(blocks):
                j = block if by_image else block * LANES
                cols = (max(0, before - j), min(k, width - j + before)) if mask and by_image else (0, k)
                lanes = lanes_of_map if by_image else min(LANES, width - j)
                lane_step = image_step if by_image else pixel_step
                pixel = start + i * row_step + j * pixel_step
                _read_lanes(scratch, query, projected, pixel, lane_step, lanes, channels)
                window = (i * padded_row + j * stride, outside + block * k * LANES * (not by_image))
                places = (query, keys, by_col, weights)
                count, scale = _window_weights(scratch, offsets, places, rows, cols, embeddings, window, steps, sizes)
                c = 0
                while c + 4 <= channels:
                    at = values + c * channel_size
                    y0, y1, y2, y3 = zeros(), zeros(), zeros(), zeros()
                    for m in range(count):
                        weight, place = load(scratch, weights + m * LANES), at + get(offsets, m)
                        y0 = fma(weight, load(scratch, place), y0)
                        y1 = fma(weight, load(scratch, place + channel_size), y1)
                        y2 = fma(weight, load(scratch, place + 2 * channel_size), y2)
                        y3 = fma(weight, load(scratch, place + 3 * channel_size), y3)
                    store(scratch, query + c * LANES, mul(y0, scale))
                    store(scratch, query + (c + 1) * LANES, mul(y1, scale))
                    store(scratch, query + (c + 2) * LANES, mul(y2, scale))
                    store(scratch, query + (c + 3) * LANES, mul(y3, scale))
                    c += 4
                while c < channels:
                    y0 = zeros()
                    for m in range(count):
                        place = values + c * channel_size + get(offsets, m)
                        y0 = fma(load(scratch, weights + m * LANES), load(scratch, place), y0)
                    store(scratch, query + c * LANES, mul(y0, scale))
                    c += 1
                pixel = ((image * height + i) * width + j) * heads * channels + head * channels
                lane_step = height * width * heads * channels if by_image else heads * channels
                _write_lanes(output, pixel, lane_step, scratch, query, lanes, channels)


@_cached
def backward(
    gradient, projected, row_embedding, col_embedding, into_projected, into_rows, into_cols,
    scratch, offsets, sizes, mask, by_image, first, last,
):  # fmt: skip
    """Gradients of the projection, and each task's share of those of the embeddings, [tasks, k, channels / 2]."""
    batch, height, width, parts, heads, channels, k, sets = sizes
    steps, blocks = _layout(sizes, by_image)
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    before, half = (k - 1) // 2, channels // 2
    has_position = len(row_embedding) > 0
    inner = before * padded_row + before * stride
    size = channels * channel_size
    keys, values, into_keys, into_values, query = 0, size, 2 * size, 3 * size, 4 * size
    slope_in = query + channels * LANES
    into_query = slope_in + channels * LANES
    by_col = into_query + channels * LANES
    weights = by_col + k * LANES
    slopes = weights + k * k * LANES
    sums = slopes + k * k * LANES
    shares = sums + 2 * k * LANES
    outside = shares + 2 * k * half * LANES
    _mark_outside(scratch, outside, blocks, width, k, mask, by_image)
    for task in range(first, last):
        group, head = task // heads, task % heads
        image = group * stride
        lanes_of_map = min(stride, batch - image)
        start = image * image_step + head * channels
        set_at = head * k * half if sets > 1 else 0
        embeddings = (row_embedding, col_embedding, set_at, has_position)
        value_part, key_part = (parts - 1) * heads * channels, heads * channels
        _map_in(scratch, values + inner, projected, start + value_part, steps, lanes_of_map, height, width, channels)
        if parts == 3:
            _map_in(scratch, keys + inner, projected, start + key_part, steps, lanes_of_map, height, width, channels)
        for at in range(into_keys, query):
            put(scratch, at, ZERO)
        for at in range(shares, outside):
            put(scratch, at, ZERO)
        for i in range(height):
            rows = (max(0, before - i), min(k, height - i + before)) if mask else (0, k)
            for block in range(blocks):
                j = block if by_image else block * LANES
                cols = (max(0, before - j), min(k, width - j + before)) if mask and by_image else (0, k)
                lanes = lanes_of_map if by_image else min(LANES, width - j)
                lane_step = image_step if by_image else pixel_step
                pixel = start + i * row_step + j * pixel_step
                _read_lanes(scratch, query, projected, pixel, lane_step, lanes, channels)
                result = ((image * height + i) * width + j) * heads * channels + head * channels
                result_step = height * width * heads * channels if by_image else heads * channels
                _read_lanes(scratch, slope_in, gradient, result, result_step, lanes, channels)
                window = (i * padded_row + j * stride, outside + block * k * LANES * (not by_image))
                places = (query, keys, by_col, weights)
                count, scale = _window_weights(scratch, offsets, places, rows, cols, embeddings, window, steps, sizes)
                # ∂logit = weight · (∂weight − Σ weight · ∂weight)
                mean = zeros()
                for m in range(count):
                    weight = mul(load(scratch, weights + m * LANES), scale)
                    slope = _dot(scratch, slope_in, values + get(offsets, m), channel_size, channels, zeros())
                    store(scratch, weights + m * LANES, weight)
                    store(scratch, slopes + m * LANES, slope)
                    mean = fma(weight, slope, mean)
                for m in range(count):
                    slope = sub(load(scratch, slopes + m * LANES), mean)
                    store(scratch, slopes + m * LANES, mul(load(scratch, weights + m * LANES), slope))
                for c in range(channels):
                    q, g, y = load(scratch, query + c * LANES), load(scratch, slope_in + c * LANES), zeros()
                    for m in range(count):
                        at = c * channel_size + get(offsets, m)
                        weight = load(scratch, weights + m * LANES)
                        store(scratch, into_values + at, fma(weight, g, load(scratch, into_values + at)))
                        if parts == 3:
                            slope = load(scratch, slopes + m * LANES)
                            y = fma(slope, load(scratch, keys + at), y)
                            store(scratch, into_keys + at, fma(slope, q, load(scratch, into_keys + at)))
                    store(scratch, into_query + c * LANES, y)
                if has_position:
                    _position_gradients(
                        scratch, (query, into_query, slopes, sums, shares), rows, cols, embeddings, sizes
                    )
                _write_lanes(into_projected, pixel, lane_step, scratch, into_query, lanes, channels)
        at = start + value_part
        _map_out(into_projected, at, steps, scratch, into_values + inner, lanes_of_map, height, width, channels)
        if parts == 3:
            at = start + key_part
            _map_out(into_projected, at, steps, scratch, into_keys + inner, lanes_of_map, height, width, channels)
        if has_position:
            for place in range(k * half):
                by_row, by_column = ZERO, ZERO
                for lane in range(LANES):
                    by_row += get(scratch, shares + place * LANES + lane)
                    by_column += get(scratch, shares + (k * half + place) * LANES + lane)
                put(into_rows, task * k * half + place, by_row)
                put(into_cols, task * k * half + place, by_column)


@njit
def _position_gradients(scratch, places, rows, cols, embeddings, sizes):
    """The position term's part of the query's gradient, and of the embeddings' (lane by lane)."""
    query, into_query, slopes, sums, shares = places
    row_embedding, col_embedding, set_at, _ = embeddings
    channels, k = sizes[5], sizes[6]
    half = channels // 2
    for b in range(cols[0], cols[1]):
        store(scratch, sums + (k + b) * LANES, zeros())
    m = 0
    for a in range(rows[0], rows[1]):
        along_row = zeros()
        for b in range(cols[0], cols[1]):
            slope = load(scratch, slopes + m * LANES)
            along_row = add(along_row, slope)
            store(scratch, sums + (k + b) * LANES, add(load(scratch, sums + (k + b) * LANES), slope))
            m += 1
        store(scratch, sums + a * LANES, along_row)
    for axis in range(2):
        start, end = rows if axis == 0 else cols
        embedding = row_embedding if axis == 0 else col_embedding
        for c in range(half):
            channel = (axis * half + c) * LANES
            q, y = load(scratch, query + channel), load(scratch, into_query + channel)
            for a in range(start, end):
                slope = load(scratch, sums + (axis * k + a) * LANES)
                y = fma(slope, splat(get(embedding, set_at + a * half + c)), y)
                share = shares + ((axis * k + a) * half + c) * LANES
                store(scratch, share, fma(slope, q, load(scratch, share)))
            store(scratch, into_query + channel, y)
