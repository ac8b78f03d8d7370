"""A convolution whose taps are attention heads: where its queries sit, and what each tap attends to.

    y_i = Σ_t W_t Σ_j A^t_ij x_j + b   is the convolution   y_i = Σ_t W_t x_{i + Δ_t} + b   where A^t_ij = [j = i + Δ_t]

An axis of a convolution has k taps, a stride, a dilation and some padding before and after. Output o reads the places
o·stride − before + dilation·t. Its query sits at the window's centre, and Δ_t is the tap's offset from there.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import positional_axis_logits
from .local import Border, relative_logits


class ConvAxis(NamedTuple):
    """A convolution along one axis."""

    kernel_size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    """Padding in front of the first pixel."""
    after: int = 0

    @property
    def reach(self) -> int:
        """Pixels between the first tap and the last."""
        return self.dilation * (self.kernel_size - 1)

    @property
    def first(self) -> int:
        """Where the first query sits."""
        return self.reach // 2 - self.before

    @property
    def rim(self) -> int:
        """At most so many outputs at either end have taps outside the image."""
        return -(-max(self.before, self.after) // self.stride)

    def num_outputs(self, length: int) -> int:
        return (length + self.before + self.after - self.reach - 1) // self.stride + 1

    def queries(self, length: int, *, device=None) -> Tensor:
        """Places of the queries among `length` pixels."""
        return self.first + self.stride * torch.arange(self.num_outputs(length), device=device)

    def offsets(self, *, device=None) -> Tensor:
        """Δ of every tap from its query, [k]."""
        return self.dilation * torch.arange(self.kernel_size, device=device) - self.reach // 2


class ConvAxes(NamedTuple):
    """A convolution's rows and columns."""

    rows: ConvAxis
    cols: ConvAxis

    @property
    def num_taps(self) -> int:
        return self.rows.kernel_size * self.cols.kernel_size

    def offsets(self) -> Tensor:
        """(row, col) of every tap from its query [n, 2], in the order of a convolution's weight: columns run fastest"""
        return torch.cartesian_prod(self.rows.offsets(), self.cols.offsets())


def tap_axis_weights(square: Tensor, linear: Tensor, axis: ConvAxis, length: int, border: Border) -> Tensor:
    """softmax of square·δ² + linear·δ along one axis: two [n] → [n, queries, keys].

    Border "zeros": the padding takes part in the softmax, and its weight is left out of the result, as its pixels are
    zero. Rows may then sum to less than one. "mask": without padding, so what would look outside looks at the edge.
    """
    before, after = (axis.before, axis.after) if border == "zeros" else (0, 0)
    keys = torch.arange(-before, length + after, device=square.device)
    offset = (keys[None, :] - axis.queries(length, device=square.device)[:, None]).to(square.dtype)
    weights = positional_axis_logits(square, linear, offset).softmax(dim=-1)
    return weights[..., before : before + length]


def tap_windows(x: Tensor, axes: ConvAxes, window: int) -> Tensor:
    """The window around every query, zeros outside the image: [B, C, H, W] → [B, C, I, J, window, window]."""
    padding: list[int] = []
    for axis, length in ((axes.cols, x.shape[3]), (axes.rows, x.shape[2])):
        left = (window - 1) // 2 - axis.first
        last = axis.first + axis.stride * (axis.num_outputs(length) - 1)
        padding += [left, last + window - (window - 1) // 2 - length]
    padded = F.pad(x, padding)
    return padded.unfold(2, window, axes.rows.stride).unfold(3, window, axes.cols.stride)


def tap_window_weights(
    query: Tensor, key: Tensor, row_embedding: Tensor, col_embedding: Tensor, axes: ConvAxes, border: Border
) -> Tensor:
    """SASA's Eq. 3 for every tap: query [B, I, J, n, d], key [B, n, d, H, W], embeddings [n, window, d/2] → weights
    [B, I, J, n, window, window], which sum to one. The border rules are those of `local_attention_weights`."""
    window = row_embedding.shape[1]
    keys = tap_windows(key.flatten(1, 2), axes, window).unflatten(1, key.shape[1:3])
    logits = torch.einsum("bijnd,bndijrc->bijnrc", query, keys) + relative_logits(query, row_embedding, col_embedding)
    if border == "mask":
        inside = tap_windows(key.new_ones(1, 1, *key.shape[-2:]), axes, window)[0, 0] > 0
        logits = logits.masked_fill(~inside[None, :, :, None], float("-inf"))
    return logits.flatten(-2).softmax(dim=-1).unflatten(-1, (window, window))
