"""The impulse start: maps by a loop, and projections whose attention is near them."""

import pytest
import torch
from torch.nn import functional as F

from nearsight.functional import attention_weights
from nearsight.functional.impulse import CONTENT_DEVIATION, SHARPNESS, impulse_maps, impulse_projections
from nearsight.nn.local import sinusoidal_positions

GRID = (5, 7)
OFFSETS = torch.tensor([[0, 0], [1, -1], [-1, 0], [0, 2]])


def tokens(width: int) -> torch.Tensor:
    return F.layer_norm(sinusoidal_positions((*GRID, width)).flatten(0, 1), (width,))


def test_maps_equal_a_loop():
    maps = impulse_maps(OFFSETS, GRID)
    height, width = GRID
    for head, (down, right) in enumerate(OFFSETS.tolist()):
        for query in range(height * width):
            row = min(max(query // width + down, 0), height - 1)
            col = min(max(query % width + right, 0), width - 1)
            assert maps[head, query].nonzero().tolist() == [[row * width + col]]


@pytest.mark.parametrize(("width", "head_dim"), [(108, 12), (96, 32)])
def test_heads_look_at_their_offset(width, head_dim):
    seen, maps = tokens(width), impulse_maps(OFFSETS, GRID)
    query, key = impulse_projections(seen, maps, head_dim)
    assert query.shape == key.shape == (len(OFFSETS), head_dim, width)
    logits = (seen @ query.mT) @ (seen @ key.mT).mT / head_dim**0.5
    above = ((logits * maps).sum(-1) - logits.mean(-1)).mean(-1)
    assert above == pytest.approx([SHARPNESS] * len(OFFSETS), rel=1e-4)
    weights = attention_weights(seen @ query.mT, seen @ key.mT)
    assert (weights * maps).sum(-1).mean(-1).min() > 0.3  # of 35 keys
    hits = (weights.argmax(-1) == maps.argmax(-1)).float().mean(-1)
    assert hits.min() > 0.8


def test_content_does_not_drown_them():
    torch.manual_seed(0)
    seen, maps = tokens(108), impulse_maps(OFFSETS, GRID)
    query, key = impulse_projections(seen, maps, 12)
    noisy = F.layer_norm(seen + CONTENT_DEVIATION * torch.randn(16, 1, *seen.shape), (108,))
    weights = attention_weights(noisy @ query.mT, noisy @ key.mT)
    assert (weights * maps).sum(-1).mean() > 5 / 35  # five times chance
