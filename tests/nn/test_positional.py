"""PSA and GPSA modules: the fast path against the equation, the convolution they are born as, and their options."""

import pytest
import torch
from timm.models.convit import GPSA as TimmGPSA
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from nearsight import functional as eq
from nearsight.nn import GatedPositionalSelfAttention, PositionalSelfAttention, SelfAttention

GRID = (5, 7)


def layer_with_random_weights(kind, **options):
    layer = kind(12, 4, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


@pytest.mark.parametrize("kind", [GatedPositionalSelfAttention, PositionalSelfAttention, SelfAttention])
def test_fast_path_equals_the_map_times_values_forward_and_backward(kind):
    layer = layer_with_random_weights(kind)
    x = torch.randn(2, 35, 12, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(2, 35, 12, dtype=torch.float64)
    fast = layer(x, GRID)
    slow, weights = layer(x, GRID, need_weights=True)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    inputs = [x, *(p for name, p in layer.named_parameters() if name != "pos_bias")]
    ours = torch.autograd.grad(fast, inputs, direction)
    theirs = torch.autograd.grad(slow, inputs, direction)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [GatedPositionalSelfAttention, PositionalSelfAttention])
def test_the_released_bias_is_in_the_graph_and_does_nothing(kind):
    layer = layer_with_random_weights(kind)
    x = torch.randn(1, 35, 12, dtype=torch.float64)
    before = layer(x, GRID)
    before.square().sum().backward()
    assert layer.pos_bias.grad is not None
    torch.testing.assert_close(layer.pos_bias.grad, torch.zeros(4, dtype=torch.float64), atol=1e-10, rtol=0)
    with torch.no_grad():
        layer.pos_bias.add_(3.0)
    torch.testing.assert_close(layer(x, GRID), before)


@pytest.mark.parametrize("kind", [GatedPositionalSelfAttention, PositionalSelfAttention])
def test_gradcheck_of_the_fast_path_on_a_rectangle(kind):
    layer = kind(4, 2).double()
    parameters = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}

    def run(x, v_pos, qk):
        return functional_call(layer, {**parameters, "v_pos": v_pos, "qk.weight": qk}, (x, (5, 7)))

    x = torch.randn(1, 35, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(run, (x, parameters["v_pos"], parameters["qk.weight"]))


def test_born_as_timms_layer():
    torch.manual_seed(3)
    theirs = TimmGPSA(27, num_heads=9)
    theirs.local_init()
    ours = GatedPositionalSelfAttention(27, 9)
    torch.testing.assert_close(ours.v_pos, theirs.pos_proj.weight.flip(1))
    torch.testing.assert_close(ours.v.weight, theirs.v.weight)
    torch.testing.assert_close(ours.gate, theirs.gating_param)


def test_nonlocality_of_a_fresh_layer_of_convit_small():
    layer = GatedPositionalSelfAttention(432, 9)
    _, weights = layer(torch.randn(1, 196, 432), (14, 14), need_weights=True)
    assert eq.nonlocality(weights, (14, 14)).mean().item() == pytest.approx(2.881, abs=3e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_built_from_a_convolution_equals_it(bias):
    conv = nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate", bias=bias).double()
    layer = GatedPositionalSelfAttention.from_convolution(conv, gate=40.0)
    x = torch.randn(2, 4, 5, 7, dtype=torch.float64, requires_grad=True)
    tokens = layer(x.flatten(2).transpose(1, 2), GRID)
    expected = conv(x)
    torch.testing.assert_close(tokens.transpose(1, 2).reshape(2, 6, 5, 7), expected)
    direction = torch.randn_like(expected)
    (from_conv,) = torch.autograd.grad(expected, x, direction)
    (from_layer,) = torch.autograd.grad(tokens.transpose(1, 2).reshape(2, 6, 5, 7), x, direction)
    torch.testing.assert_close(from_layer, from_conv)


def test_a_layer_built_from_a_convolution_can_learn_to_leave_it():
    """Unless told otherwise: 4.5e-5 of the attention is content's, so gate, queries and keys have gradients."""
    conv = nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate")
    layer = GatedPositionalSelfAttention.from_convolution(conv)
    x = torch.randn(2, 4, 5, 7)
    y = layer(x.flatten(2).transpose(1, 2), GRID)
    expected = conv(x).flatten(2).transpose(1, 2)
    assert (y - expected).norm() < 1e-4 * expected.norm()
    y.square().sum().backward()
    for parameter in (layer.gate, layer.qk.weight, layer.v_pos):
        assert parameter.grad.abs().max() > 0
        assert parameter.grad.isfinite().all()


def test_a_1x1_convolution_has_no_edge_to_pad():
    conv = nn.Conv2d(3, 5, 1).double()
    x = torch.randn(1, 3, *GRID, dtype=torch.float64)
    layer = GatedPositionalSelfAttention.from_convolution(conv, gate=40.0)
    y = layer(x.flatten(2).transpose(1, 2), GRID).transpose(1, 2).unflatten(2, GRID)
    torch.testing.assert_close(y, conv(x))


def test_nine_heads_at_alpha_50_with_open_gates_are_a_3x3_convolution_in_float32():
    layer = GatedPositionalSelfAttention(36, 9, locality_strength=50.0, gate=40.0)
    x = torch.randn(1, 36, 5, 7)
    y = layer(x.flatten(2).transpose(1, 2), GRID).transpose(1, 2).reshape(1, 36, 5, 7)
    conv = nn.Conv2d(36, 36, 3, padding=1, padding_mode="replicate")
    weight, _ = eq.convolution_from_attention(layer.v_pos, layer.v.weight, layer.proj.weight, kernel_size=3)
    with torch.no_grad():
        conv.weight.copy_(weight)
        conv.bias.copy_(layer.proj.bias)
    torch.testing.assert_close(y, conv(x), atol=6e-7, rtol=1e-5)


def test_even_kernels_become_convolutions_only_with_centres_on_patches():
    def sharpest(on_patches):
        layer = GatedPositionalSelfAttention(8, 4, locality_strength=50.0, centers_on_patches=on_patches).double()
        return eq.positional_weights(layer.v_pos, GRID)[:, 2 * 7 + 3].max(-1).values

    torch.testing.assert_close(sharpest(True), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(sharpest(False), torch.full((4,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12])
def test_any_number_of_heads(heads):
    layer = GatedPositionalSelfAttention(24 if heads != 5 else 25, heads)
    assert layer(torch.randn(1, 35, layer.dim), GRID).shape == (1, 35, layer.dim)
    assert layer.v_pos.unique(dim=0).shape[0] == heads


def test_random_start_and_frozen_gate():
    layer = GatedPositionalSelfAttention(12, 4, init="random", gate=0.0, train_gate=False)
    assert layer.v_pos.abs().max() < 0.1
    assert not layer.gate.requires_grad
    torch.testing.assert_close(layer.gate_value, torch.full((4,), 0.5))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SelfAttention(10, 3), "dim=10 is not divisible by num_heads=3; use dim=9"),
        (lambda: GatedPositionalSelfAttention(10, 4), "dim=10 is not divisible"),
        (lambda: GatedPositionalSelfAttention(8, 4, locality_strength=0.0), "locality_strength must be positive"),
        (lambda: GatedPositionalSelfAttention(8, 4, init="conv"), "init must be one of 'convolutional', 'random'"),
        (lambda: GatedPositionalSelfAttention(8, 4)(torch.randn(1, 36, 8), GRID), "35 patches, but the input has 36"),
        (
            lambda: GatedPositionalSelfAttention(8, 4)(torch.randn(1, 8, 35), GRID),
            r"expected tokens \[batch, tokens, 8\]",
        ),
        (
            lambda: GatedPositionalSelfAttention.from_convolution(nn.Conv2d(2, 2, 3, stride=2)),
            r"not .*'stride': \(2, 2\)",
        ),
        (lambda: GatedPositionalSelfAttention.from_convolution(nn.Conv2d(2, 2, 3, padding=1)), "padding_mode='zeros'"),
        (
            lambda: GatedPositionalSelfAttention.from_convolution(
                nn.Conv2d(2, 2, 4, padding=1, padding_mode="replicate")
            ),
            r"keeps the size; got padding=\(1, 1\)",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_remedy(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_backend_that_is_not_there_is_refused_when_the_layer_is_made():
    with pytest.raises(
        ValueError, match="backend 'cuda' is unknown; choose one of joint, fused, numba, dense, separable"
    ):
        GatedPositionalSelfAttention(12, 2, backend="cuda")
