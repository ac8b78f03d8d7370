"""LocalSelfAttention2d: where nn.Conv2d stood."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from nearsight import functional as eq
from nearsight.acceleration import accelerate
from nearsight.nn import AttentionStem2d, LocalSelfAttention2d
from nearsight.nn.local import sinusoidal_positions


@pytest.mark.parametrize("size", [(5, 7), (8, 8), (1, 3)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("downsample", ["pool", "stride"])
def test_gives_the_shape_of_the_convolution_it_replaces(size, stride, downsample):
    x = torch.randn(2, 12, *size)
    conv = nn.Conv2d(12, 16, 3, stride=stride, padding=1)
    layer = LocalSelfAttention2d(12, 16, 3, stride, num_heads=4, downsample=downsample)
    assert layer(x).shape == conv(x).shape


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"content": False},
        {"positions": "none"},
        {"positions": "absolute"},
        {"border": "zeros"},
        {"projections": "grouped", "bias": True},
        {"share_positions": False},
        {"downsample": "stride", "stride": 2},
        {"kernel_size": 4},
        {"start": "local"},
        {"start": "local", "content": False, "share_positions": False, "projections": "grouped"},
    ],
    ids=str,
)
def test_fast_path_equals_the_map_times_values_forward_and_backward(options):
    layer = LocalSelfAttention2d(
        **{"in_channels": 8, "out_channels": 8, "kernel_size": 3, "num_heads": 2, **options}
    ).double()
    x = torch.randn(2, 8, 5, 7, dtype=torch.float64, requires_grad=True)
    fast = layer(x)
    slow, weights = layer(x, need_weights=True)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(weights.sum((-2, -1)), torch.ones_like(weights[..., 0, 0]))
    inputs = [x, *layer.parameters()]
    direction = torch.randn_like(fast)
    for a, b in zip(
        torch.autograd.grad(fast, inputs, direction, allow_unused=True),
        torch.autograd.grad(slow, inputs, direction, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_one_layer_step_by_step():
    layer = LocalSelfAttention2d(6, 8, 3, num_heads=2).double()
    x = torch.randn(1, 6, 5, 7, dtype=torch.float64)
    pixels = x.permute(0, 2, 3, 1)
    query, value, key = ((pixels @ w.T).reshape(1, 5, 7, 2, 4) for w in layer.weight)
    expected = eq.local_attention(query, key, value, layer.row_embedding, layer.col_embedding, kernel_size=3)
    torch.testing.assert_close(layer(x), expected.flatten(3).permute(0, 3, 1, 2))


def test_pooling_follows_the_attention():
    whole = LocalSelfAttention2d(8, 8, 3, num_heads=2)
    halved = LocalSelfAttention2d(8, 8, 3, stride=2, num_heads=2)
    halved.load_state_dict(whole.state_dict())
    x = torch.randn(1, 8, 6, 10)
    torch.testing.assert_close(halved(x), nn.functional.avg_pool2d(whole(x), 2))


def test_gradcheck_of_the_module():
    layer = LocalSelfAttention2d(2, 4, 3, num_heads=1, border="zeros").double()
    assert gradcheck(layer, torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True))


def test_logits_start_at_unit_scale_without_a_scale_in_the_equation():
    layer = LocalSelfAttention2d(256, 256, 7, num_heads=8)
    pixels = torch.randn(1, 8, 8, 256)
    query, key, _ = eq.query_key_value(layer.project(pixels))
    logits = torch.einsum("bijnd,bijnd->bijn", query, key)
    assert 0.7 < logits.std() < 1.4


def test_parameters_are_shared_or_not_as_asked():
    count = lambda **options: sum(p.numel() for p in LocalSelfAttention2d(64, 64, 7, **options).parameters())  # noqa: E731
    assert count() == 3 * 64 * 64 + 7 * 8
    assert count(share_positions=False) == 3 * 64 * 64 + 7 * 64
    assert count(content=False) == 2 * 64 * 64 + 7 * 8
    assert count(projections="grouped") == 3 * 64 * 8 + 7 * 8
    assert count(positions="none", bias=True) == 3 * 64 * 64 + 3 * 64


@pytest.mark.parametrize("values", ["spatial", "convolution", "plain"])
def test_stem_keeps_to_its_blocks_and_gives_its_weights(values):
    stem = AttentionStem2d(3, 16, values=values)
    x = torch.randn(1, 3, 8, 12)
    y, weights = stem(x, need_weights=True)
    assert y.shape == (1, 16, 8, 12)
    torch.testing.assert_close(stem(x), y)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    x2 = x.clone()
    x2[:, :, 4:, 8:] += 1
    if values != "convolution":
        assert torch.equal(stem(x2)[:, :, :4], y[:, :, :4])


@pytest.mark.parametrize("values", ["spatial", "convolution", "plain"])
@pytest.mark.parametrize(("block", "size"), [(4, (8, 12)), (3, (3, 15)), (5, (10, 5)), (1, (3, 2))])
def test_accelerated_stem_is_the_equation_s(values, block, size):
    """Forward and backward; blocks of five are above the size at which a whole block is one row of a product."""
    stem = AttentionStem2d(3, 12, values=values, block_size=block, num_mixtures=3)
    exact = copy.deepcopy(stem).double()
    x = torch.randn(2, 3, *size, requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    right = exact(x64)
    gradient = torch.randn(right.shape)
    wanted = torch.autograd.grad(right, [x64, *exact.parameters()], gradient.double())
    found = accelerate(stem)(x)
    grads = torch.autograd.grad(found, [x, *stem.parameters()], gradient)
    for got, one in zip((found, *grads), (right, *wanted), strict=True):
        torch.testing.assert_close(got.double(), one, rtol=1e-4, atol=1e-4)


def test_convolutional_stem_values_look_one_pixel_back_and_two_ahead():
    stem = AttentionStem2d(3, 16, values="convolution")
    x = torch.randn(1, 3, 8, 12)
    padded = nn.functional.pad(x, (1, 2, 1, 2))
    expected = nn.functional.conv2d(padded, stem.value_weights).permute(0, 2, 3, 1)
    torch.testing.assert_close(stem._values(x, x.permute(0, 2, 3, 1)), expected)


def test_absolute_positions_are_sinusoids_of_row_then_column():
    table = sinusoidal_positions((3, 5, 8))
    assert table.shape == (3, 5, 8)
    frequency = 10_000 ** (-2 / 4)
    expected = [math.sin(2), math.cos(2), math.sin(2 * frequency), math.cos(2 * frequency)]
    torch.testing.assert_close(table[2, 4, :4], torch.tensor(expected))
    torch.testing.assert_close(table[2, 4, 4], torch.tensor(math.sin(4)))
    layer = LocalSelfAttention2d(8, 8, 3, num_heads=2, positions="absolute")
    flat = torch.ones(1, 8, 5, 5)
    assert layer(flat)[0, :, 2, 2].sub(layer(flat)[0, :, 2, 3]).abs().max() > 1e-3


def test_stem_values_depend_on_the_place_in_the_block():
    x = torch.ones(1, 3, 4, 4)
    assert AttentionStem2d(3, 16, values="plain")(x)[0, 0].std() < 1e-6
    stem = AttentionStem2d(3, 16)
    values = stem._values(x, x.permute(0, 2, 3, 1))
    assert values.std(dim=(1, 2)).max() > 1e-3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LocalSelfAttention2d(8, 12, 3), "out_channels=12 is not divisible by num_heads=8"),
        (lambda: LocalSelfAttention2d(8, 8, 3, num_heads=8), "split a head's channels in two"),
        (lambda: LocalSelfAttention2d(8, 16, 0), "kernel_size must be a whole number of at least 1, not 0"),
        (
            lambda: LocalSelfAttention2d(8, 16, (3, 3)),
            r"kernel_size must be a whole number of at least 1, not \(3, 3\)",
        ),
        (lambda: LocalSelfAttention2d(0, 16, 3), "in_channels must be"),
        (lambda: AttentionStem2d(3, 16, block_size=0), "block_size must be"),
        (lambda: LocalSelfAttention2d(8, 16, 3, border="reflect"), "border must be one of 'mask', 'zeros'"),
        (lambda: LocalSelfAttention2d(9, 16, 3, projections="grouped"), "in_channels=9"),
        (lambda: LocalSelfAttention2d(8, 16, 3)(torch.randn(2, 5, 7, 8)), "move the channels to axis 1"),
        (lambda: LocalSelfAttention2d(8, 16, 3)(torch.randn(8, 5, 7)), r"expected images \[batch, 8, height, width\]"),
        (lambda: AttentionStem2d(3, 16)(torch.randn(1, 3, 10, 12)), "10x12 is not divisible by the stem's block of 4"),
    ],
)
def test_bad_input_names_the_value_and_the_remedy(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "options", [{}, {"share_positions": False}, {"projections": "grouped"}, {"content": False}], ids=str
)
def test_heads_that_start_local_look_at_the_pixels_around_the_query(options):
    torch.manual_seed(0)
    layer = LocalSelfAttention2d(64, 64, 7, start="local", **options)
    x = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU())(torch.randn(4, 64, 12, 12))
    _, weights = layer(x, need_weights=True)
    inside = weights[:, 3:-3, 3:-3].mean((0, 1, 2))  # [heads, 7, 7]
    peaks = [divmod(int(one), 7) for one in inside.flatten(1).argmax(1)]
    assert sorted((row - 3, col - 3) for row, col in peaks) == [
        (row, col) for row in (-1, 0, 1) for col in (-1, 0, 1) if (row, col) != (0, 0)
    ]
    assert inside.flatten(1).amax(1).min() > 0.3  # where an even window has 0.02
    even = LocalSelfAttention2d(64, 64, 7, **options)(x, need_weights=True)[1][:, 3:-3, 3:-3].mean((0, 1, 2))
    assert even.max() < 0.1


def test_more_heads_than_pixels_around_begin_again():
    layer = LocalSelfAttention2d(48, 48, 3, num_heads=12, start="local")
    query = layer.weight[0].detach().unflatten(0, (12, 4))
    assert torch.equal(query[8:], query[:4])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "near"}, "start"),
        ({"start": "local", "positions": "none"}, "relative positions"),
        ({"start": "local", "num_heads": 4}, "2 channels"),
        ({"start": "local", "num_heads": 2, "kernel_size": 1}, "kernel_size=1"),
    ],
)
def test_a_local_start_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LocalSelfAttention2d(8, 8, **{"kernel_size": 3, **options})
