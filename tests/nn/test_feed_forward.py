"""The feed-forward half of a block: its equation."""

import pytest
import torch
from torch.nn import functional as F

from nearsight.nn import FeedForward


def equation(layer, x):
    return layer.fc2(F.gelu(layer.fc1(x)))


@pytest.mark.parametrize("grad", [True, False])
def test_it_is_its_equation_and_leaves_the_input_alone(grad):
    layer = FeedForward(6, 10).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    before = x.clone()
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(layer(x), equation(layer, x))
    assert torch.equal(x, before)


def test_gradients_are_the_equations():
    layer = FeedForward(3, 4).double()
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(layer(x).square().sum(), inputs),
        torch.autograd.grad(equation(layer, x).square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_dropout_acts_in_training_only():
    layer, x = FeedForward(6, 10, drop=0.5), torch.randn(2, 5, 6)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
