# mypy: ignore-errors
"""The Triton kernel of the backend `fused`: a product with the batch-free weights P, mixed into the content's output.

    out[b, i, h] = scale[h] · content[b, i, h] + Σ_j P[h, i, j] · value[b, j, h]

P (the gate already in it) is small enough to live in the L2 cache, so the product reads v once and its result never
goes to memory on its own. It comes as [n, N, M], columns of zeros up to a multiple of 16, which keeps rows aligned.
Other tensors are read through their strides over (image, head, position), channels dense.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(
    weights, value, content, scale, output, other, partial,
    weight_head, weight_row, weight_col,
    value_image, value_head, value_place, content_image, content_head, content_place,
    output_image, output_head, output_place, other_image, other_head, other_place,
    num_heads, tokens, weight_rows, weight_cols, tiles,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Forward: output = scale·content + P·value.

    Backward: `weights` comes transposed, `value` is ∂out; output = Pᵀ·∂out is ∂value, other = scale·∂out is ∂content,
    and partial[b, h, tile] = Σ ∂out·content is this tile's share of ∂scale.
    """
    program = tl.program_id(0)
    tile = program % tiles
    head = (program // tiles) % num_heads
    image = (program // tiles // num_heads).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    channel = tl.arange(0, D)[None, :]
    value += image * value_image + head * value_head + channel
    weights += head * weight_head + row[:, None] * weight_row

    result = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, tokens, DEPTH):
        key = start + depth
        known = (row[:, None] < weight_rows) & (key[None, :] < weight_cols)
        left = tl.load(weights + key[None, :] * weight_col, mask=known, other=0.0)
        known = (key[:, None] < tokens) & (channel < HEAD_DIM)
        right = tl.load(value + key[:, None] * value_place, mask=known, other=0.0)
        result = tl.dot(left, right, result)

    known = (row[:, None] < tokens) & (channel < HEAD_DIM)
    factor = tl.load(scale + head)
    from_content = tl.load(
        content + image * content_image + head * content_head + row[:, None] * content_place + channel, known, other=0.0
    ).to(tl.float32)
    if BACKWARD:
        gradient = tl.load(value + row[:, None] * value_place, known, other=0.0).to(tl.float32)
        at = other + image * other_image + head * other_head + row[:, None] * other_place + channel
        tl.store(at, (factor * gradient).to(other.dtype.element_ty), known)
        tl.store(partial + program, tl.sum(gradient * from_content))
    else:
        result += factor * from_content
    at = output + image * output_image + head * output_head + row[:, None] * output_place + channel
    tl.store(at, result.to(output.dtype.element_ty), known)
