# mypy: ignore-errors
"""What the Triton kernels of local attention share: places, loads and dot products of one thread's queries.

One thread owns a few neighbouring queries of one head and walks their window. A head of 8 channels is too thin for
tensor cores, and a window of 49 keys too ragged: padding both would multiply the work. So a thread holds `VEC` channels
of a pixel (one 16-byte load), a program covers a 2-D tile of pixels so that the keys its windows share stay in the L1
cache, and a thread owns `COLS` queries side by side so that each key it loads and widens serves several of them.
Blocks are [P pixels, HEADS, D / VEC, VEC]: a head of D channels spreads over D / VEC threads.

Logits are in base 2 (exp2 is one instruction). The embeddings come as one float32 table [2k, heads, d]: row t holds
concat(r_t, 0), row k + t holds concat(0, r_t), so that q·table is the row or the column term.

Keys outside the image are read as zeros; under the `mask` border rule the row and column terms carry a −∞ as well.
Per-query statistics (log-sum-exp, δ) are stored once per thread, [B, H, W, slots], so that every thread reads its own.
No atomics anywhere: every run gives the same bits.

Query, value and key are parts of one contiguous projection [B, H, W, parts, heads, d], and so are their gradients.
PIXEL is its step from pixel to pixel, a compile-time constant so that the loads of one window row share one address.
Outputs and their gradients are [B, H, W, heads, d]. With PACK = 2 the inputs are bfloat16 read as 32-bit words of two
channels, and PIXEL counts words.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Below every real logit, yet finite: −∞ minus −∞ would be NaN in a window row that lies wholly outside the image.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def which_program(head_blocks):
    """Image, tile and block of heads of this program; neighbours in the grid read the same cache lines."""
    tile_col = tl.program_id(0) // head_blocks
    return tl.program_id(2).to(tl.int64), tl.program_id(1), tile_col, tl.program_id(0) % head_blocks


@triton.jit
def channels_of(
    head_block, num_heads, HEADS: tl.constexpr, D: tl.constexpr, HEAD_DIM: tl.constexpr, FULL: tl.constexpr
):
    """The channel of each lane of the block [1, HEADS·D], and whether there is one (always, when FULL)."""
    lane = tl.arange(0, HEADS * D)[None, :]
    channel = head_block * (HEADS * D) + lane
    exists = channel >= 0
    if not FULL:
        head = head_block * HEADS + lane // D
        channel = head * HEAD_DIM + lane % D
        exists = (head < num_heads) & (lane % D < HEAD_DIM)
    return channel, exists


@triton.jit
def in_words(pointer, PACK: tl.constexpr):
    """Where PACK is 2, bfloat16 as 32-bit words of two channels."""
    if PACK == 2:
        pointer = pointer.to(tl.pointer_type(tl.int32), bitcast=True)
    return pointer


@triton.jit
def load_pixels(
    pointers, inside, exists,
    P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """[P, HEADS, D / VEC, VEC] in float32, zeros where not `inside` and beyond the last channel.

    bfloat16 comes as 32-bit words of two channels: a shift widens one, a mask the other (three instructions otherwise).
    """
    mask = inside if FULL else inside & exists
    if pointers.dtype.element_ty == tl.int32:
        words = tl.load(pointers, mask=mask, other=0)
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
        loaded = tl.join(first, second)
    else:
        loaded = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    return tl.reshape(loaded, [P, HEADS, D // VEC, VEC])


@triton.jit
def embedding(
    table, index, channel, exists, width,
    P: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, VEC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Row `index` of the embedding table for every thread, [P, HEADS, D / VEC, VEC]."""
    pointers = tl.broadcast_to(table + index * width + channel, [P, HEADS * D])
    loaded = tl.load(pointers) if FULL else tl.load(pointers, mask=exists, other=0.0)
    return tl.reshape(loaded, [P, HEADS, D // VEC, VEC])


@triton.jit
def dot(left, right):
    """Σ over the channels of a head, [P, HEADS]."""
    return tl.sum(tl.sum(left * right, axis=3), axis=2)


@triton.jit
def wide(scalars):
    """[P, HEADS] → [P, HEADS, 1, 1], to meet channels. Narrow until then: a wide scalar lives in VEC registers."""
    return scalars[:, :, None, None]
