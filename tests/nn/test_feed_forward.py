"""The feed-forward half of a block: its equation, and when GELU may write over the hidden layer."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from nearsight.bench.measure import peak_memory
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


def test_without_gradients_the_hidden_layer_is_there_once():
    layer, x = FeedForward(64, 256), torch.randn(1, 500, 64)
    hidden = 500 * 256 * 4
    with torch.no_grad():
        assert peak_memory(layer, x, torch.device("cpu")) < 1.5 * hidden
    assert peak_memory(layer, x, torch.device("cpu")) > 2 * hidden


@pytest.mark.parametrize("watched", ["fc1", "act"])
def test_who_watches_sees_what_was_computed(watched):
    layer, x = FeedForward(6, 10), torch.randn(2, 5, 6)
    seen = {}
    getattr(layer, watched).register_forward_hook(lambda module, inputs, output: seen.update(here=(inputs, output)))
    with torch.no_grad():
        layer(x)
        inputs, output = seen["here"]
        hidden = layer.fc1(x)
        torch.testing.assert_close(*((output, hidden) if watched == "fc1" else (inputs[0], hidden)))


def test_hooks_on_every_module_see_what_was_computed():
    layer, x = FeedForward(6, 10), torch.randn(2, 5, 6)
    seen = {}
    handle = register_module_forward_hook(lambda module, inputs, output: seen.update({module: output}))
    with torch.no_grad():
        layer(x)
        handle.remove()
        torch.testing.assert_close(seen[layer.fc1], layer.fc1(x))
    assert layer.act in seen


def test_another_gelu_is_heeded_with_gradients_and_without():
    layer, x = FeedForward(6, 10), torch.randn(2, 5, 6) * 3
    layer.act = torch.nn.GELU("tanh")
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.fc2(F.gelu(layer.fc1(x), approximate="tanh")))
    layer.act.forward = torch.relu
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.fc2(torch.relu(layer.fc1(x))))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated", "ignore:.torch.jit.trace_method. is deprecated")
def test_a_trace_made_without_gradients_can_be_differentiated():
    layer, x = FeedForward(6, 10), torch.randn(2, 5, 6)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x))
    assert traced(x).requires_grad
    assert torch.fx.symbolic_trace(layer)(x).shape == x.shape


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward derivatives use it
def test_transforms_and_forward_derivatives():
    layer, x = FeedForward(6, 10).requires_grad_(False), torch.randn(3, 2, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x.flatten(0, 1)).unflatten(0, (3, 2)))
    _, ours = torch.func.jvp(layer, (x[0],), (x[1],))
    _, theirs = torch.func.jvp(lambda x: equation(layer, x), (x[0],), (x[1],))
    torch.testing.assert_close(ours, theirs)


def test_dropout_acts_in_training_only():
    layer, x = FeedForward(6, 10, drop=0.5), torch.randn(2, 5, 6)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
