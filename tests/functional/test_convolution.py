"""Attention as a convolution and back, float64, 5×7."""

import pytest
import torch
from torch.nn import functional as F

from nearsight import functional as eq


def positional_layer(parts, x):
    """A purely positional attention layer with the given weights, on images [B, C, H, W]."""
    batch, channels, height, width = x.shape
    tokens = x.flatten(2).transpose(1, 2)
    heads = parts.v_pos.shape[0]
    value = (tokens @ parts.value_weight.T).reshape(batch, -1, heads, channels).transpose(1, 2)
    mixed = eq.positional_weights(parts.v_pos, (height, width)) @ value
    out = mixed.transpose(1, 2).flatten(2) @ parts.out_weight.T
    return out.transpose(1, 2).reshape(batch, -1, height, width)


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 5])
def test_any_convolution_is_attention(kernel_size):
    weight = torch.randn(4, 3, kernel_size, kernel_size, dtype=torch.float64)
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    before = (kernel_size - 1) // 2
    after = kernel_size - 1 - before
    expected = F.conv2d(F.pad(x, (before, after, before, after), mode="replicate"), weight)
    torch.testing.assert_close(positional_layer(eq.attention_from_convolution(weight), x), expected)


def test_there_and_back():
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64)
    parts = eq.attention_from_convolution(weight)
    again, missing = eq.convolution_from_attention(*parts, kernel_size=3)
    torch.testing.assert_close(again, weight)
    assert missing.abs().max() < 1e-12


def test_a_soft_head_becomes_a_wider_convolution_and_tells_what_it_loses():
    parts = eq.attention_from_convolution(torch.randn(4, 3, 3, 3, dtype=torch.float64), locality_strength=0.5)
    x = torch.randn(1, 3, 21, 23, dtype=torch.float64)
    weight, missing = eq.convolution_from_attention(*parts, kernel_size=15)
    inside = F.conv2d(x, weight)
    torch.testing.assert_close(positional_layer(parts, x)[:, :, 7:-7, 7:-7], inside, atol=1e-6, rtol=1e-6)
    _, cut = eq.convolution_from_attention(*parts, kernel_size=3)
    assert 0 < missing.max() < 1e-6 < 0.1 < cut.max() < 1


def test_heads_that_spread_without_bound_are_refused():
    parts = eq.attention_from_convolution(torch.randn(1, 1, 3, 3))
    with pytest.raises(ValueError, match="infinite grid"):
        eq.convolution_from_attention(-parts.v_pos, parts.value_weight, parts.out_weight, kernel_size=3)
    with pytest.raises(ValueError, match="square kernels"):
        eq.attention_from_convolution(torch.randn(1, 1, 3, 5))
