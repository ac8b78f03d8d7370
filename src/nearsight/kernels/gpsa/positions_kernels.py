# mypy: ignore-errors
"""Triton kernels that make GPSA's positional weights from v_pos and the gates, and their gradients.

    weights[i, j] = g · P[i, j],   P[i, ·] = softmax_j(a‖δ‖² + b δ_row + c δ_col),   g = σ(λ),   share = 1 − g

A program takes ROWS queries of one head and all keys. In PyTorch the same is twenty small operators forward and as many
backward, longer than the attention itself when launched one by one.
"""

import triton
import triton.language as tl


@triton.jit
def _positions(v_pos, head, row, col, tokens, width):
    """P of queries `row` and keys `col` [R, C], row-major places on the grid, and δ_row and δ_col."""
    square = tl.load(v_pos + head * 3).to(tl.float32)
    linear_row = tl.load(v_pos + head * 3 + 1).to(tl.float32)
    linear_col = tl.load(v_pos + head * 3 + 2).to(tl.float32)
    down = col[None, :] // width - row[:, None] // width
    right = col[None, :] % width - row[:, None] % width
    down, right = down.to(tl.float32), right.to(tl.float32)
    logits = square * (down * down + right * right) + linear_row * down + linear_col * right
    logits = tl.where((col < tokens)[None, :], logits, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None], down, right


@triton.jit
def make_weights(
    v_pos, gate, weights, share, tokens, cols, width,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    position, _, _ = _positions(v_pos, head, row, col, tokens, width)
    strength = tl.sigmoid(tl.load(gate + head).to(tl.float32))
    at = weights + (head * tokens + row[:, None]) * cols + col[None, :]
    known = (row < tokens)[:, None] & (col < cols)[None, :]
    tl.store(at, (strength * position).to(weights.dtype.element_ty), mask=known)
    if tl.program_id(0) == 0:
        tl.store(share + head, tl.sigmoid(-tl.load(gate + head).to(tl.float32)))


@triton.jit
def weights_backward(
    grad_weights, v_pos, gate, partial, tokens, cols, width,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """partial[head, program] = (∂a, ∂b, ∂c, ∂g) of this program's queries."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    position, down, right = _positions(v_pos, head, row, col, tokens, width)
    strength = tl.sigmoid(tl.load(gate + head).to(tl.float32))
    known = (row < tokens)[:, None] & (col < tokens)[None, :]
    at = grad_weights + (head * tokens + row[:, None]) * cols + col[None, :]
    change = position * tl.load(at, mask=known, other=0.0)
    by_row = tl.sum(change, axis=1)
    logits = strength * (change - position * by_row[:, None])
    at = partial + (head * tl.num_programs(0) + tl.program_id(0)) * 4
    tl.store(at, tl.sum(logits * (down * down + right * right)))
    tl.store(at + 1, tl.sum(logits * down))
    tl.store(at + 2, tl.sum(logits * right))
    tl.store(at + 3, tl.sum(by_row))


@triton.jit
def sum_partials(partial, gate, grad_share, grad_v_pos, grad_gate, programs, PROGRAMS: tl.constexpr):
    """∂v_pos and ∂λ = (∂g − ∂share) · g (1 − g) of one head."""
    head = tl.program_id(0)
    program = tl.arange(0, PROGRAMS)
    at = partial + (head * programs + program) * 4
    known = program < programs
    for axis in tl.static_range(3):
        tl.store(grad_v_pos + head * 3 + axis, tl.sum(tl.load(at + axis, mask=known, other=0.0)))
    to_gate = tl.sum(tl.load(at + 3, mask=known, other=0.0)) - tl.load(grad_share + head)
    value = tl.load(gate + head).to(tl.float32)
    tl.store(grad_gate + head, to_gate * tl.sigmoid(value) * tl.sigmoid(-value))


@triton.jit
def _weight_gradient(
    gradient, value, partial,
    gradient_image, gradient_head, gradient_place, value_image, value_head, value_place,
    batch, num_heads, tokens, weight_cols, tiles, images,
    UNIT: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """partial[share, h, i, j] = Σ_b Σ_d ∂out[b, i, h, d] · value[b, j, h, d] over this share's `images` images.

    Strides are in units of UNIT elements.
    """
    program = tl.program_id(0)
    tile_col = program % tiles
    tile_row = (program // tiles) % tiles
    head = (program // tiles // tiles) % num_heads
    share = program // tiles // tiles // num_heads
    row = tile_row * SIDE + tl.arange(0, SIDE)
    col = tile_col * SIDE + tl.arange(0, SIDE)
    channel = tl.arange(0, D)
    first = share * images
    gradient += (first.to(tl.int64) * gradient_image + head * gradient_head) * UNIT
    gradient += row[:, None] * (gradient_place * UNIT) + channel[None, :]
    value += (first.to(tl.int64) * value_image + head * value_head) * UNIT
    value += col[None, :] * (value_place * UNIT) + channel[:, None]
    known_row = (row[:, None] < tokens) & (channel[None, :] < HEAD_DIM)
    known_col = (col[None, :] < tokens) & (channel[:, None] < HEAD_DIM)

    result = tl.zeros([SIDE, SIDE], tl.float32)
    for _ in range(first, tl.minimum(first + images, batch)):
        left = tl.load(gradient, mask=known_row, other=0.0)
        right = tl.load(value, mask=known_col, other=0.0)
        result = tl.dot(left, right, result)
        gradient += gradient_image * UNIT
        value += value_image * UNIT

    at = partial + (share * num_heads + head).to(tl.int64) * tokens * weight_cols
    tl.store(
        at + row[:, None] * weight_cols + col[None, :], result, (row[:, None] < tokens) & (col[None, :] < weight_cols)
    )
