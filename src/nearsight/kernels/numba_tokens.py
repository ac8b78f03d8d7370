# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""Attention among all tokens of small grids, for a CPU, compiled by numba: y = (a · softmax(scale · q kᵀ) + P) v.

The 16 lanes of a vector are 16 queries, or, where keys and values gather their gradients, 16 channels. What a lane
meets, a number of a key or a value, is read where the projection has left it and spread over all lanes, so that
nothing is laid out anew but queries. P (GPSA's positional weights) is one matrix a head for all images. A task is a
share of the images, and one head of theirs or all; shares depend on the batch alone, not on threads: any number of
threads gives the same bits.

Sizes of a job: images, tokens, groups of images, 3, heads, channels, 0, heads of a task.
"""

from .local.numba_maps import HAS_POSITION, njit, read_lanes, share_of_thread, sizes_of, tensor, write_lanes
from .local.numba_window import ONE, ZERO, softmax
from .numba_vectors import add, fma, get, load, mul, put, splat, store, sub, zeros
from .sizes import LANES


@njit
def products(scratch, target, step, vectors, source, place, token_step, tokens, channels):
    """target[m] = Σ_c vector[c] · source[m, c]; four tokens at once, so that a vector is read once."""
    m = 0
    while m < tokens:
        at = place + m * token_step
        y0, y1, y2, y3 = zeros(), zeros(), zeros(), zeros()
        together = 4 if m + 4 <= tokens else 1
        if together == 4:
            for c in range(channels):
                x = load(scratch, vectors + c * LANES)
                y0 = fma(x, splat(get(source, at + c)), y0)
                y1 = fma(x, splat(get(source, at + token_step + c)), y1)
                y2 = fma(x, splat(get(source, at + 2 * token_step + c)), y2)
                y3 = fma(x, splat(get(source, at + 3 * token_step + c)), y3)
            store(scratch, target + (m + 1) * step, y1)
            store(scratch, target + (m + 2) * step, y2)
            store(scratch, target + (m + 3) * step, y3)
        else:
            for c in range(channels):
                y0 = fma(load(scratch, vectors + c * LANES), splat(get(source, at + c)), y0)
        store(scratch, target + m * step, y0)
        m += together


@njit
def sums(scratch, target, weights, step, source, place, token_step, tokens, channels, scale):
    """target[c] = scale · Σ_m weight[m] · source[m, c]; four channels at once, so that a weight is read once."""
    c = 0
    while c < channels:
        at = place + c
        y0, y1, y2, y3 = zeros(), zeros(), zeros(), zeros()
        together = 4 if c + 4 <= channels else 1
        if together == 4:
            for m in range(tokens):
                weight, number = load(scratch, weights + m * step), at + m * token_step
                y0 = fma(weight, splat(get(source, number)), y0)
                y1 = fma(weight, splat(get(source, number + 1)), y1)
                y2 = fma(weight, splat(get(source, number + 2)), y2)
                y3 = fma(weight, splat(get(source, number + 3)), y3)
            store(scratch, target + (c + 1) * LANES, mul(y1, scale))
            store(scratch, target + (c + 2) * LANES, mul(y2, scale))
            store(scratch, target + (c + 3) * LANES, mul(y3, scale))
        else:
            for m in range(tokens):
                y0 = fma(load(scratch, weights + m * step), splat(get(source, at + m * token_step)), y0)
        store(scratch, target + c * LANES, mul(y0, scale))
        c += together


@njit
def gather(target, place, token_step, scratch, weights, step, rows, padded, room, tokens, channels):
    """target[m, c] = Σ_q weight[m, q] · row[q, c]; 16 channels to a vector, four tokens at once."""
    m = 0
    while m < tokens:
        together = 4 if m + 4 <= tokens else 1
        for c in range(0, channels, LANES):
            y0, y1, y2, y3 = zeros(), zeros(), zeros(), zeros()
            at, row = weights + m * step, rows + c
            if together == 4:
                for q in range(tokens):
                    x = load(scratch, row + q * padded)
                    y0 = fma(x, splat(get(scratch, at + q)), y0)
                    y1 = fma(x, splat(get(scratch, at + step + q)), y1)
                    y2 = fma(x, splat(get(scratch, at + 2 * step + q)), y2)
                    y3 = fma(x, splat(get(scratch, at + 3 * step + q)), y3)
                store(scratch, room + LANES, y1)
                store(scratch, room + 2 * LANES, y2)
                store(scratch, room + 3 * LANES, y3)
            else:
                for q in range(tokens):
                    y0 = fma(load(scratch, row + q * padded), splat(get(scratch, at + q)), y0)
            store(scratch, room, y0)
            for token in range(together):
                for lane in range(min(LANES, channels - c)):
                    put(target, place + (m + token) * token_step + c + lane, get(scratch, room + token * LANES + lane))
        m += together


@njit
def scaled(scratch, vectors, channels, scale):
    for c in range(channels):
        store(scratch, vectors + c * LANES, mul(load(scratch, vectors + c * LANES), scale))


@njit
def forward(job):
    """output [batch, tokens, heads, channels] from the projection, a [heads], scale [1], P [heads, key, query]."""
    sizes = sizes_of(job)
    batch, tokens, groups, _, heads, channels, _, heads_of_task = sizes
    # No positions are a loop over no tokens: the compiler would make a copy of all loops for every `if`.
    with_position = tokens if get(job, HAS_POSITION) != 0 else 0
    projected, amounts, factor, positions, output = (
        tensor(job, 0), tensor(job, 1), tensor(job, 2), tensor(job, 3), tensor(job, 4),
    )  # fmt: skip
    scratch, _, first, last = share_of_thread(job)
    token_step = 3 * heads * channels
    padded = (tokens + LANES - 1) // LANES * LANES
    query, weights = 0, channels * LANES
    scale = splat(get(factor, 0))
    for task in range(first, last):
        group, first_head = task // (heads // heads_of_task), task % (heads // heads_of_task) * heads_of_task
        for image in range(batch * group // groups, batch * (group + 1) // groups):
            for head in range(first_head, first_head + heads_of_task):
                start = image * tokens * token_step + head * channels
                keys, values = start + heads * channels, start + 2 * heads * channels
                for i in range(0, tokens, LANES):
                    lanes = min(LANES, tokens - i)
                    read_lanes(scratch, query, LANES, projected, start + i * token_step, token_step, lanes, channels)
                    scaled(scratch, query, channels, scale)
                    products(scratch, weights, LANES, query, projected, keys, token_step, tokens, channels)
                    whole = mul(softmax(scratch, weights, tokens, LANES), splat(get(amounts, head)))
                    for m in range(tokens):
                        store(scratch, weights + m * LANES, mul(load(scratch, weights + m * LANES), whole))
                    for m in range(with_position):
                        position = load(positions, (head * tokens + m) * padded + i)
                        store(scratch, weights + m * LANES, add(load(scratch, weights + m * LANES), position))
                    sums(scratch, query, weights, LANES, projected, values, token_step, tokens, channels, splat(ONE))
                    place = (image * tokens + i) * heads * channels + head * channels
                    write_lanes(output, place, heads * channels, scratch, query, lanes, channels)


@njit
def backward(job):
    """Gradients of the projection, and each group's share of those of a [groups, heads] and P [groups, heads, …].

    Weights and the logits' derivatives of one head of one image are kept, [key, query], for keys and values to gather.
    """
    sizes = sizes_of(job)
    batch, tokens, groups, _, heads, channels, _, heads_of_task = sizes
    with_position = tokens if get(job, HAS_POSITION) != 0 else 0
    projected, amounts, factor, positions = tensor(job, 0), tensor(job, 1), tensor(job, 2), tensor(job, 3)
    gradient, into_projected, into_amounts, into_positions = (
        tensor(job, 4), tensor(job, 5), tensor(job, 6), tensor(job, 7),
    )  # fmt: skip
    scratch, _, first, last = share_of_thread(job)
    token_step, result_step = 3 * heads * channels, heads * channels
    padded = (tokens + LANES - 1) // LANES * LANES
    step = padded + LANES
    padded_channels = (channels + LANES - 1) // LANES * LANES
    weights = 0
    slopes = weights + tokens * step
    query_rows = slopes + tokens * step
    slope_rows = query_rows + tokens * padded_channels
    query = slope_rows + tokens * padded_channels
    slope_in = query + channels * LANES
    room = slope_in + channels * LANES
    number = get(factor, 0)
    scale = splat(number)
    for task in range(first, last):
        group, first_head = task // (heads // heads_of_task), task % (heads // heads_of_task) * heads_of_task
        for image in range(batch * group // groups, batch * (group + 1) // groups):
            for head in range(first_head, first_head + heads_of_task):
                start = image * tokens * token_step + head * channels
                keys, values = start + heads * channels, start + 2 * heads * channels
                result = image * tokens * result_step + head * channels
                amount, shared = splat(get(amounts, head)), (group * heads + head) * tokens * padded
                for q in range(tokens):
                    for c in range(channels):
                        put(scratch, query_rows + q * padded_channels + c,
                            get(projected, start + q * token_step + c) * number)  # fmt: skip
                        put(scratch, slope_rows + q * padded_channels + c,
                            get(gradient, result + q * result_step + c))  # fmt: skip
                into_amount = zeros()
                for i in range(0, tokens, LANES):
                    lanes = min(LANES, tokens - i)
                    w, s = weights + i, slopes + i
                    pixel = start + i * token_step
                    read_lanes(scratch, query, LANES, projected, pixel, token_step, lanes, channels)
                    scaled(scratch, query, channels, scale)
                    read_lanes(
                        scratch, slope_in, LANES, gradient, result + i * result_step, result_step, lanes, channels
                    )
                    products(scratch, w, step, query, projected, keys, token_step, tokens, channels)
                    whole = softmax(scratch, w, tokens, step)
                    products(scratch, s, step, slope_in, projected, values, token_step, tokens, channels)
                    for m in range(with_position):
                        at = shared + m * padded + i
                        store(into_positions, at, add(load(into_positions, at), load(scratch, s + m * step)))
                    mean = zeros()
                    for m in range(tokens):
                        weight = mul(load(scratch, w + m * step), whole)
                        store(scratch, w + m * step, weight)
                        mean = fma(weight, load(scratch, s + m * step), mean)
                    into_amount = add(into_amount, mean)
                    for m in range(tokens):
                        weight = mul(load(scratch, w + m * step), amount)
                        store(scratch, w + m * step, weight)
                        store(scratch, s + m * step, mul(weight, sub(load(scratch, s + m * step), mean)))
                    for m in range(with_position):
                        position = load(positions, (head * tokens + m) * padded + i)
                        store(scratch, w + m * step, add(load(scratch, w + m * step), position))
                    sums(scratch, query, s, step, projected, keys, token_step, tokens, channels, scale)
                    write_lanes(into_projected, pixel, token_step, scratch, query, lanes, channels)
                gather(
                    into_projected, values, token_step, scratch, weights, step, slope_rows, padded_channels, room,
                    tokens, channels,
                )  # fmt: skip
                gather(
                    into_projected, keys, token_step, scratch, slopes, step, query_rows, padded_channels, room,
                    tokens, channels,
                )  # fmt: skip
                store(scratch, room, into_amount)
                total = ZERO
                for lane in range(LANES):
                    total += get(scratch, room + lane)
                at = group * heads + head
                put(into_amounts, at, get(into_amounts, at) + total)
