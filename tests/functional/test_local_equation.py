"""SASA's equation against loops over pixels, and its limits, in float64 on a 5×7 grid."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from nearsight import functional as eq
from nearsight.geometry import window_offsets

HEIGHT, WIDTH = 5, 7


def qkv(heads=2, dim=4, batch=2):
    return [torch.randn(batch, HEIGHT, WIDTH, heads, dim, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def embeddings(kernel_size, sets=1, dim=4):
    return [torch.randn(sets, kernel_size, dim // 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def by_loops(query, key, value, row, col, kernel_size, stride, border):
    """Eq. 3 pixel by pixel, key by key, with no tensor operation that the implementation shares."""
    batch, rows, cols, heads, _ = query.shape
    out = torch.zeros_like(query)
    offsets = window_offsets(kernel_size).tolist()
    for b in range(batch):
        for i in range(rows):
            for j in range(cols):
                for n in range(heads):
                    q, logits, values = query[b, i, j, n], [], []
                    for a, da in enumerate(offsets):
                        for c, dc in enumerate(offsets):
                            y, x = i * stride + da, j * stride + dc
                            inside = 0 <= y < HEIGHT and 0 <= x < WIDTH
                            if not inside and border == "mask":
                                continue
                            k = key[b, y, x, n] if inside else torch.zeros_like(q)
                            v = value[b, y, x, n] if inside else torch.zeros_like(q)
                            g = 0 if row.shape[0] == 1 else n
                            r = torch.cat((row[g, a], col[g, c]))
                            logits.append(q @ k + q @ r)
                            values.append(v)
                    out[b, i, j, n] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("border", ["mask", "zeros"])
@pytest.mark.parametrize(("kernel_size", "stride", "sets"), [(3, 1, 1), (4, 1, 2), (5, 2, 2), (2, 2, 1)])
def test_equation_equals_loops(kernel_size, stride, sets, border):
    query, key, value = [t.detach() for t in qkv(batch=1)]
    row, col = [t.detach() for t in embeddings(kernel_size, sets)]
    query = query[:, ::stride, ::stride].contiguous()
    fast = eq.local_attention(query, key, value, row, col, kernel_size=kernel_size, stride=stride, border=border)
    torch.testing.assert_close(fast, by_loops(query, key, value, row, col, kernel_size, stride, border))


@pytest.mark.parametrize("border", ["mask", "zeros"])
@pytest.mark.parametrize("kernel_size", [3, 4])
def test_gradients(kernel_size, border):
    inputs = [t.detach()[:, :3, :4].requires_grad_() for t in qkv(heads=1, dim=2, batch=1)]
    assert gradcheck(
        lambda *a: eq.local_attention(*a, kernel_size=kernel_size, border=border),
        (*inputs, *embeddings(kernel_size, dim=2)),
    )


def test_equal_logits_average_the_neighbourhood():
    query, _, value = qkv()
    averaged = eq.local_attention(query, None, value, kernel_size=3)
    image = value.permute(0, 3, 4, 1, 2).flatten(1, 2)
    expected = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=False)
    torch.testing.assert_close(averaged.permute(0, 3, 4, 1, 2).flatten(1, 2), expected)


def test_zeros_border_averages_over_the_whole_window():
    query, _, value = qkv()
    averaged = eq.local_attention(query, None, value, kernel_size=3, border="zeros")
    image = value.permute(0, 3, 4, 1, 2).flatten(1, 2)
    expected = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=True)
    torch.testing.assert_close(averaged.permute(0, 3, 4, 1, 2).flatten(1, 2), expected)


def test_a_window_as_large_as_the_image_is_global_attention():
    query, key, value = qkv()
    local = eq.local_attention(query, key, value, kernel_size=13)
    flat = [t.flatten(1, 2).transpose(1, 2) for t in (query, key, value)]
    everywhere = eq.self_attention(*flat, scale=1.0)
    torch.testing.assert_close(local.flatten(1, 2).transpose(1, 2), everywhere)


def test_weights_sum_to_one_and_stay_inside():
    query, key, _ = qkv()
    weights = eq.local_attention_weights(query, key, *embeddings(5), kernel_size=5, grid_size=(HEIGHT, WIDTH))
    torch.testing.assert_close(weights.sum((-2, -1)), torch.ones_like(weights[..., 0, 0]))
    assert weights[:, 0, 0, :, :2].abs().max() == 0
    assert weights[:, 0, 0, :, :, :2].abs().max() == 0
