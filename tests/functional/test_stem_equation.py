import torch
from torch.autograd import gradcheck

from nearsight import functional as eq
from nearsight.functional.stem import from_blocks, to_blocks
from nearsight.kernels import spatially_aware_values


def test_blocks_there_and_back_keep_pixels_in_place():
    x = torch.arange(2 * 8 * 12 * 3).reshape(2, 8, 12, 3)
    blocks = to_blocks(x, 4)
    assert blocks.shape == (2, 2, 3, 16, 3)
    assert torch.equal(blocks[1, 1, 2, 5], x[1, 4 + 1, 8 + 1])
    assert torch.equal(from_blocks(blocks, 4), x)


def test_attention_never_leaves_its_block():
    query, key, value = torch.randn(3, 1, 8, 12, 2, 4, dtype=torch.float64).unbind(0)
    before = eq.block_attention(query, key, value, 4)
    key2, value2 = key.clone(), value.clone()
    key2[:, 4:, 8:], value2[:, 4:, 8:] = 7.0, -3.0
    after = eq.block_attention(query, key2, value2, 4)
    changed = (before != after).flatten(3).any(-1)[0]
    assert changed[4:, 8:].all()
    assert not changed[:4].any()
    assert not changed[:, :8].any()


def test_spatially_aware_values_one_pixel_at_a_time():
    x = torch.randn(1, 4, 8, 3, dtype=torch.float64)
    weights = torch.randn(5, 6, 3, dtype=torch.float64)
    row, col, nu = (torch.randn(n, 2, dtype=torch.float64) for n in (4, 4, 5))
    mixture = eq.value_mixture(row, col, nu)
    torch.testing.assert_close(mixture.sum(-1), torch.ones(4, 4, dtype=torch.float64))
    values = eq.spatially_aware_values(x, weights, mixture)
    for i, j in ((0, 0), (3, 7), (2, 5)):
        p = ((row[i % 4] + col[j % 4]) @ nu.T).softmax(0)
        expected = sum(p[m] * weights[m] for m in range(5)) @ x[0, i, j]
        torch.testing.assert_close(values[0, i, j], expected)


def test_the_lean_form_equals_the_equation_forward_and_backward():
    inputs = (
        torch.randn(2, 4, 8, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True),
        torch.rand(4, 4, 3, dtype=torch.float64, requires_grad=True),
    )
    direction = torch.randn(2, 4, 8, 2, dtype=torch.float64)
    lean, plain = spatially_aware_values(*inputs), eq.spatially_aware_values(*inputs)
    torch.testing.assert_close(lean, plain)
    for ours, theirs in zip(
        torch.autograd.grad(lean, inputs, direction), torch.autograd.grad(plain, inputs, direction), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert gradcheck(spatially_aware_values, inputs)
