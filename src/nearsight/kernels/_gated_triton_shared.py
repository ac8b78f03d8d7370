# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton joins tuples by + alone)
"""What the joint GPSA kernels share: matrices as tuples of tiles, so that odd sizes need little padding.

A *span* is (start, width) with a power of two for its width. The channels of a head are a tuple of spans, ((0, 32),
(32, 16)) for 48 of them, and so are the keys of a row, ((0, 128), (128, 64), (192, 16)) for 196: products run over the
tuple, and 48 channels need not be padded to 64 nor 196 keys to 256 (`_gated_triton_plans` says which are). A matrix
is a tuple of tiles, one for each span of channels.

Strides are given in units of UNIT elements, 8 where they allow it (see `stride_unit`).
"""

import triton
import triton.language as tl


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
