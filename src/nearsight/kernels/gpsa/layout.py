"""What the backends of GPSA are called with, and how its tensors lie in memory."""

import math
from typing import NamedTuple

from torch import Tensor

from ...geometry import Grid


class Positions(NamedTuple):
    """What makes the positional weights P and mixes them with content, for n heads on one grid."""

    v_pos: Tensor
    """[n, 3] over (‖δ‖², δ_row, δ_col)."""
    pos_bias: Tensor
    """[n]."""
    gate: Tensor
    """λ [n]."""
    grid_size: Grid


def heads_outside(qkv: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value, [B, n, N, d] each, of the packed [B, N, 3, n, d]: views."""
    return qkv.permute(2, 0, 3, 1, 4).unbind(0)


def known_sizes(tensor: Tensor) -> tuple[int, int, int, int]:
    """Of a [B, n, N, d]; under torch.compile the batch alone may be symbolic, kernels are made for the others."""
    batch, num_heads, tokens, head_dim = tensor.shape
    return batch, int(num_heads), int(tokens), int(head_dim)


def positions_outside(tensor: Tensor) -> Tensor:
    """An empty [B, N, n, d] for a [B, n, N, d], so that joining the heads copies nothing.

    Kernels write it whole, before it is transposed: torch.compile would copy what is written through a view.
    """
    batch, num_heads, tokens, head_dim = known_sizes(tensor)
    return tensor.new_empty(batch, tokens, num_heads, head_dim)


def dense_channels(tensor: Tensor) -> Tensor:
    """The same tensor when its channels lie side by side, a contiguous copy of it otherwise."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def places(tensor: Tensor, unit: int = 1) -> tuple[int, int, int]:
    """Strides of [B, n, N, d] over images, heads and positions, in units."""
    return tensor.stride(0) // unit, tensor.stride(1) // unit, tensor.stride(2) // unit


def packed_places(qkv: Tensor, unit: int) -> tuple[int, int, int, int]:
    """Strides of [B, N, 3, n, d] over images, heads, positions and from query to key to value, in units."""
    image, place, part, head, _ = qkv.stride()
    return image // unit, head // unit, place // unit, part // unit


def stride_unit(*tensors: Tensor) -> int:
    """8, or less if a stride of these, but for the channels' own, is not a multiple of it.

    A row that starts at a multiple of 8 elements is loaded 16 bytes at a time. Triton looks for multiples of 16 alone,
    which 9 heads of 24 channels are not; a product with a constant 8 it understands.
    """
    return math.gcd(8, *(stride for tensor in tensors for stride in tensor.stride()[:-1]))
