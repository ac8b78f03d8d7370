"""A plain ViT whose attention starts as a convolution by its weights alone, with nothing added to the architecture."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..functional import impulse_maps, impulse_projections
from ..geometry import Grid, window_offsets
from ..nn import SelfAttention

WINDOW = 3
"""Heads start somewhere in a window of so many patches a side."""


def start_as_impulses(layers: Iterable[SelfAttention], positions: Tensor, grid_size: Grid) -> None:
    """Give each head of these layers a random offset of the window, and the queries and keys that look there.

    positions [N, width] is what tokens carry; layers read it normalised, as a block's first norm leaves it.
    """
    seen = F.layer_norm(positions, positions.shape[-1:])
    axis = window_offsets(WINDOW)
    for layer in layers:
        offsets = axis[torch.randint(WINDOW, (layer.num_heads, 2))]
        query, key = impulse_projections(seen, impulse_maps(offsets, grid_size), layer.head_dim)
        inner = layer.num_heads * layer.head_dim
        layer.qkv.weight[:inner].copy_(query.flatten(0, 1))
        layer.qkv.weight[inner : 2 * inner].copy_(key.flatten(0, 1))
