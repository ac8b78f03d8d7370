# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""Local attention's loops for a CPU, compiled by numba: 16 queries at a time, no window copied.

One head's keys and values lie channel by channel in a padded map. The 16 lanes of a vector are 16 neighbouring pixels
of a row, or, where maps are small and batches large (`by_image`), the same pixel of 16 images. Either way the key at an
offset of the window is one vector, found by adding a number to the query's place. A task is one head of one image (or
of 16). Tasks share nothing that is written, so that any number of threads gives the same bits; a thread has
neighbouring heads, since those lie in common cache lines. `numba_maps` says what a job is, `numba_window` what is done
with one window.
"""

from ..numba_vectors import add, fma, get, load, mul, put, splat, store, sub, zeros
from ..sizes import LANES
from .numba_maps import (
    BY_IMAGE,
    HAS_POSITION,
    MASK,
    layout,
    map_in,
    map_out,
    njit,
    read_lanes,
    share_of_thread,
    sizes_of,
    tensor,
    write_lanes,
)
from .numba_window import ONE, ZERO, add_back, add_products, inside, mark_outside, weighted_sums, window_weights


@njit
def forward(job):
    """output [batch, height, width, heads, channels], from the projection and both embeddings."""
    sizes = sizes_of(job)
    batch, height, width, parts, heads, channels, k, sets = sizes
    mask, by_image = get(job, MASK) != 0, get(job, BY_IMAGE) != 0
    # Loops over no channels stand for what is left out: the compiler would make a copy of all loops for every `if`.
    half = channels // 2 if get(job, HAS_POSITION) != 0 else 0
    key_channels = channels if parts == 3 else 0
    projected, row_embedding, col_embedding, output = tensor(job, 0), tensor(job, 1), tensor(job, 2), tensor(job, 3)
    scratch, offsets, first, last = share_of_thread(job)
    steps, blocks = layout(sizes, by_image)
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    inner = (k - 1) // 2 * (padded_row + stride)
    keys, values = 0, channels * channel_size
    query = 2 * channels * channel_size
    by_col = query + channels * LANES
    weights = by_col + k * LANES
    outside = weights + k * k * LANES
    mark_outside(scratch, outside, blocks, width, k, mask and not by_image)
    for task in range(first, last):
        group, head = task // heads, task % heads
        image = group * stride
        lanes_of_map = min(stride, batch - image)
        start = image * image_step + head * channels
        embeddings = (row_embedding, col_embedding, head * k * half * (sets > 1), half)
        key_part, value_part = start + heads * channels, start + (parts - 1) * heads * channels
        map_in(scratch, values + inner, projected, value_part, steps, lanes_of_map, sizes, channels)
        map_in(scratch, keys + inner, projected, key_part, steps, lanes_of_map, sizes, key_channels)
        for i in range(height):
            rows = inside(i, k, height, mask)
            for block in range(blocks):
                j = block if by_image else block * LANES
                cols = inside(j, k, width, mask and by_image)
                lanes = lanes_of_map if by_image else min(LANES, width - j)
                lane_step = image_step if by_image else pixel_step
                pixel = start + i * row_step + j * pixel_step
                read_lanes(scratch, query, LANES, projected, pixel, lane_step, lanes, channels)
                window = (i * padded_row + j * stride, outside + block * k * LANES * (not by_image))
                places = (query, LANES, keys, by_col, weights)
                count, scale = window_weights(
                    scratch, offsets, places, rows, cols, embeddings, window, steps, key_channels
                )
                weighted_sums(scratch, query, weights, values, offsets, count, channel_size, channels, scale)
                pixel = ((image * height + i) * width + j) * heads * channels + head * channels
                lane_step = height * width * heads * channels if by_image else heads * channels
                write_lanes(output, pixel, lane_step, scratch, query, lanes, channels)


@njit
def backward(job):
    """Gradients of the projection, and each task's share of those of the embeddings, [tasks, k, channels / 2].

    For a row of queries at a time all weights, their derivatives, queries and incoming gradients are kept, in rows as
    long as the map's, so that keys and values can gather their gradients.
    """
    sizes = sizes_of(job)
    batch, height, width, parts, heads, channels, k, sets = sizes
    mask, by_image = get(job, MASK) != 0, get(job, BY_IMAGE) != 0
    # Loops over no channels stand for what is left out: the compiler would make a copy of all loops for every `if`.
    half = channels // 2 if get(job, HAS_POSITION) != 0 else 0
    key_channels = channels if parts == 3 else 0
    projected, row_embedding, col_embedding, gradient = tensor(job, 0), tensor(job, 1), tensor(job, 2), tensor(job, 3)
    into_projected, into_rows, into_cols = tensor(job, 4), tensor(job, 5), tensor(job, 6)
    scratch, offsets, first, last = share_of_thread(job)
    steps, blocks = layout(sizes, by_image)
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    before = (k - 1) // 2
    inner = before * (padded_row + stride)
    size = channels * channel_size
    keys, values, into_keys, into_values, query_row = 0, size, 2 * size, 3 * size, 4 * size
    slope_in_row = query_row + channels * padded_row
    weight_rows = slope_in_row + channels * padded_row
    slope_rows = weight_rows + k * k * padded_row
    into_query = slope_rows + k * k * padded_row
    by_col = into_query + channels * LANES
    weights = by_col + k * LANES
    slopes = weights + k * k * LANES
    sums = slopes + k * k * LANES
    shares = sums + 2 * k * LANES
    outside = shares + 2 * k * half * LANES
    mark_outside(scratch, outside, blocks, width, k, mask and not by_image)
    for task in range(first, last):
        group, head = task // heads, task % heads
        image = group * stride
        lanes_of_map = min(stride, batch - image)
        start = image * image_step + head * channels
        key_part, value_part = start + heads * channels, start + (parts - 1) * heads * channels
        embeddings = (row_embedding, col_embedding, head * k * half * (sets > 1), half)
        map_in(scratch, values + inner, projected, value_part, steps, lanes_of_map, sizes, channels)
        map_in(scratch, keys + inner, projected, key_part, steps, lanes_of_map, sizes, key_channels)
        for at in range(into_keys, query_row):
            put(scratch, at, ZERO)
        for at in range(shares, outside):
            put(scratch, at, ZERO)
        for i in range(height):
            rows = inside(i, k, height, mask)
            for block in range(blocks):
                j = block if by_image else block * LANES
                cols = inside(j, k, width, mask and by_image)
                lanes = lanes_of_map if by_image else min(LANES, width - j)
                lane_step = image_step if by_image else pixel_step
                pixel = start + i * row_step + j * pixel_step
                place = (k - 1 - before + j) * stride  # in rows of queries
                query, slope_in = query_row + place, slope_in_row + place
                read_lanes(scratch, query, padded_row, projected, pixel, lane_step, lanes, channels)
                result = ((image * height + i) * width + j) * heads * channels + head * channels
                result_step = height * width * heads * channels if by_image else heads * channels
                read_lanes(scratch, slope_in, padded_row, gradient, result, result_step, lanes, channels)
                window = (i * padded_row + j * stride, outside + block * k * LANES * (not by_image))
                places = (query, padded_row, keys, by_col, weights)
                count, scale = window_weights(
                    scratch, offsets, places, rows, cols, embeddings, window, steps, key_channels
                )
                for m in range(count):
                    store(scratch, slopes + m * LANES, zeros())
                add_products(scratch, slopes, slope_in, padded_row, values, offsets, count, channel_size, channels)
                _into_logits(scratch, weights, slopes, count, scale)
                m = 0
                for a in range(rows[0], rows[1]):
                    for b in range(cols[0], cols[1]):
                        at = (a * k + b) * padded_row + place
                        store(scratch, weight_rows + at, load(scratch, weights + m * LANES))
                        store(scratch, slope_rows + at, load(scratch, slopes + m * LANES))
                        m += 1
                for c in range(key_channels, channels):
                    store(scratch, into_query + c * LANES, zeros())
                one = splat(ONE)
                weighted_sums(scratch, into_query, slopes, keys, offsets, count, channel_size, key_channels, one)
                places = (query, padded_row, into_query, slopes, sums, shares)
                _position_gradients(scratch, places, rows, cols, embeddings, k)
                write_lanes(into_projected, pixel, lane_step, scratch, into_query, lanes, channels)
            for a in range(max(0, before - i), min(k, height - i + before)):
                at = inner + (i + a - before) * padded_row
                row = a * k * padded_row
                add_back(scratch, into_values + at, weight_rows + row, slope_in_row, blocks, k, steps, channels)
                add_back(scratch, into_keys + at, slope_rows + row, query_row, blocks, k, steps, key_channels)
        map_out(into_projected, value_part, scratch, into_values + inner, steps, lanes_of_map, sizes, channels)
        map_out(into_projected, key_part, scratch, into_keys + inner, steps, lanes_of_map, sizes, key_channels)
        for place in range(k * half):
            by_row, by_column = ZERO, ZERO
            for lane in range(LANES):
                by_row += get(scratch, shares + place * LANES + lane)
                by_column += get(scratch, shares + (k * half + place) * LANES + lane)
            put(into_rows, task * k * half + place, by_row)
            put(into_cols, task * k * half + place, by_column)


@njit
def _into_logits(scratch, weights, slopes, count, scale):
    """∂logit = weight · (∂weight − Σ weight · ∂weight), in place of ∂weight; and weights become those that sum to 1."""
    mean = zeros()
    for m in range(count):
        weight = mul(load(scratch, weights + m * LANES), scale)
        store(scratch, weights + m * LANES, weight)
        mean = fma(weight, load(scratch, slopes + m * LANES), mean)
    for m in range(count):
        slope = sub(load(scratch, slopes + m * LANES), mean)
        store(scratch, slopes + m * LANES, mul(load(scratch, weights + m * LANES), slope))


@njit
def _position_gradients(scratch, places, rows, cols, embeddings, k):
    """The position term's part of the query's gradient, and of the embeddings' (lane by lane)."""
    query, query_step, into_query, slopes, sums, shares = places
    row_embedding, col_embedding, set_at, half = embeddings
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
            channel = axis * half + c
            q, y = load(scratch, query + channel * query_step), load(scratch, into_query + channel * LANES)
            for a in range(start, end):
                slope = load(scratch, sums + (axis * k + a) * LANES)
                y = fma(slope, splat(get(embedding, set_at + a * half + c)), y)
                share = shares + ((axis * k + a) * half + c) * LANES
                store(scratch, share, fma(slope, q, load(scratch, share)))
            store(scratch, into_query + channel * LANES, y)
