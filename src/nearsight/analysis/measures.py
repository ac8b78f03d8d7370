"""Numbers that describe a head, as plain functions of maps whose rows sum to one.

Maps over a grid are [B, n, N, N] (query, key); maps over windows are [B, I, J, n, k, k]. Each function averages over
queries and returns one number for each image and head, [B, n] (or [B, n, 2] for (row, col)), unless it says
otherwise. Distances are in patches (pixels of the layer's own grid for windows).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from nearsight.geometry import Grid


def entropy(weights: Tensor) -> Tensor:
    """−Σ_j A_ij ln A_ij in nats, averaged over queries: 0 for one key, ln N for all alike."""
    return torch.special.entr(weights).sum(dim=-1).mean(dim=-1)


def centers_and_spans(weights: Tensor, grid_size: Grid) -> tuple[Tensor, Tensor]:
    """Where a head looks and how widely, measured: the mean offset (key − query) [B, n, 2] and the standard deviation
    of keys around their own query's mean, per axis, [B, n]. exp(−α‖δ − Δ‖²) on an unbounded grid has centre Δ and,
    for small α, span 1/√(2α). Edges pull centres inwards."""
    height, width = grid_size
    row = torch.arange(height, device=weights.device, dtype=weights.dtype).repeat_interleave(width)
    col = torch.arange(width, device=weights.device, dtype=weights.dtype).repeat(height)
    position = torch.stack((row, col, row.square() + col.square()), dim=-1)
    moments = weights @ position  # [B, n, N, 3]
    mean = moments[..., :2]
    variance = (moments[..., 2] - mean.square().sum(dim=-1)).clamp_min(0).mean(dim=-1)
    return (mean - position[:, :2]).mean(dim=-2), (variance / 2).sqrt()


def offset_kernel(mean_weights: Tensor, grid_size: Grid) -> Tensor:
    """The convolution kernel nearest to a head: its map averaged by offset, [n, N, N] → [n, 2H−1, 2W−1], summing to
    one.

    Only queries of the inner part of the image (a quarter of each side away from its edge, all if the side is too
    short) are averaged, so that what a head does at the edge leaves no trace in the kernel. The middle entry is the
    query itself.
    """
    height, width = grid_size
    maps = mean_weights.unflatten(-1, grid_size).unflatten(1, grid_size)  # [n, H, W, H, W]
    total = maps.new_zeros(maps.shape[0], 2 * height - 1, 2 * width - 1)
    count = maps.new_zeros(2 * height - 1, 2 * width - 1)
    for row in _inner(height):
        for col in _inner(width):
            seen = (slice(height - 1 - row, 2 * height - 1 - row), slice(width - 1 - col, 2 * width - 1 - col))
            total[:, seen[0], seen[1]] += maps[:, row, col]
            count[seen] += 1
    kernel = total / count.clamp_min(1)
    return kernel / kernel.sum(dim=(-2, -1), keepdim=True)


def convolve_everywhere(kernel: Tensor, grid_size: Grid) -> Tensor:
    """The map [n, N, N] of a convolution with `kernel` [n, 2H−1, 2W−1]: weight that would fall outside the image
    falls on the nearest patch inside (replicate padding, which positional attention tends to)."""
    rows, cols = (_landing(length).to(kernel) for length in grid_size)  # [query, offset, key] each
    maps = torch.einsum("nuv,ruh,cvw->nrchw", kernel, rows, cols)
    return maps.flatten(3, 4).flatten(1, 2)


def convolution_share(sum_of_squares: Tensor, mean_weights: Tensor, grid_size: Grid) -> Tensor:
    """How close a head is to a convolution, [n] in [0, 1]: the share of its maps' squared weight that one kernel
    explains.

    1 − Σ‖A − C‖² / Σ‖A‖², where C convolves with the head's own `offset_kernel`; 1 when every query of every image
    has that kernel, 0 (the floor) when the kernel explains nothing. Needs only the sum of squares for each image,
    averaged over images [n], and the averaged map [n, N, N], so a set of images can be streamed.
    """
    predicted = convolve_everywhere(offset_kernel(mean_weights, grid_size), grid_size)
    error = sum_of_squares - 2 * (predicted * mean_weights).sum(dim=(-2, -1)) + predicted.square().sum(dim=(-2, -1))
    return (1 - error / sum_of_squares).clamp(0, 1)


def window_entropy(weights: Tensor) -> Tensor:
    """−Σ A ln A over each window in nats, averaged over queries."""
    return torch.special.entr(weights).sum(dim=(-2, -1)).mean(dim=(1, 2))


def window_nonlocality(weights: Tensor, offsets: Tensor) -> Tensor:
    """Eq. 8 of ConViT for windows: Σ A ‖δ‖ averaged over queries; `offsets` [k, k, 2]."""
    return torch.einsum("bijnrc,rc->bijn", weights, offsets.norm(dim=-1)).mean(dim=(1, 2))


def window_centers_and_spans(weights: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """As `centers_and_spans`, for windows."""
    mean = torch.einsum("bijnrc,rcx->bijnx", weights, offsets)
    square = torch.einsum("bijnrc,rc->bijn", weights, offsets.square().sum(dim=-1))
    variance = (square - mean.square().sum(dim=-1)).clamp_min(0).mean(dim=(1, 2))
    return mean.mean(dim=(1, 2)), (variance / 2).sqrt()


def _inner(length: int) -> range:
    margin = length // 4
    return range(margin, length - margin)


def _landing(length: int) -> Tensor:
    """One-hot [query, offset, key] along one axis: where query + offset lands after clamping to the image."""
    place = torch.arange(length)[:, None] + torch.arange(1 - length, length)[None, :]
    return F.one_hot(place.clamp(0, length - 1), length)
