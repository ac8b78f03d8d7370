"""Attention in the place of a convolution: it starts as that convolution, and may leave it."""

import pytest
import torch
from torch import nn

from nearsight.nn import AttentionConv2d, GatedAttentionConv2d, LocalAttentionConv2d
from nearsight.nn.attention_conv import refusal

SHAPES = {
    "plain": {"kernel_size": 3, "padding": 1},
    "no bias": {"kernel_size": 3, "padding": 1, "bias": False},
    "stride": {"kernel_size": 3, "stride": 2, "padding": 1},
    "no padding": {"kernel_size": 3},
    "5": {"kernel_size": 5, "padding": 2, "stride": 2, "padding_mode": "replicate"},
    "7 depthwise": {"kernel_size": 7, "padding": 3, "groups": 6},
    "groups": {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2},
    "even": {"kernel_size": 2, "stride": 2},
    "row": {"kernel_size": (1, 5), "padding": (0, 2), "stride": (2, 1)},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect", "stride": 2},
    "circular": {"kernel_size": 5, "padding": 2, "padding_mode": "circular"},
    "half padding": {"kernel_size": 5, "padding": 1, "stride": 3},
}
KINDS = {"gpsa": GatedAttentionConv2d, "local": LocalAttentionConv2d}
both = pytest.mark.parametrize("kind", KINDS)


def exactly(kind: str, conv: nn.Conv2d, **options) -> AttentionConv2d:
    """At this strength, and this gate, nothing of float64's precision is left for other pixels."""
    closed = {"gate": 40.0} if kind == "gpsa" else {}
    return KINDS[kind].from_convolution(conv, locality_strength=50.0, **closed, **options)


def moved(layer: AttentionConv2d) -> AttentionConv2d:
    """The layer somewhere in its training: every parameter is another."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.1 if name == "v_pos" else 0.5))
    return layer


@both
@pytest.mark.parametrize("shape", SHAPES)
def test_it_starts_as_its_convolution(kind, shape):
    conv = nn.Conv2d(6, 12, **SHAPES[shape]).double()
    x = torch.randn(2, 6, 9, 14, dtype=torch.float64)
    layer = exactly(kind, conv)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-13)
    torch.testing.assert_close(layer(x, need_weights=True)[0], conv(x), rtol=0, atol=1e-13)
    assert layer.rim == 0


@both
@pytest.mark.parametrize("size", [(3, 5), (8, 1), (6, 7)])
def test_it_is_the_convolution_at_sizes_near_the_kernels_own(kind, size):
    conv = nn.Conv2d(4, 4, 5, stride=2, padding=2).double()
    x = torch.randn(1, 4, *size, dtype=torch.float64)
    torch.testing.assert_close(exactly(kind, conv)(x), conv(x), rtol=0, atol=1e-13)


@both
def test_with_the_defaults_it_differs_in_the_sixth_digit_and_everything_can_learn(kind):
    conv = nn.Conv2d(8, 8, 3, padding=1)
    x = torch.randn(4, 8, 7, 9)
    layer = KINDS[kind].from_convolution(conv)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-5)
    layer(x).square().sum().backward()
    query, key = layer.qk.weight.grad.chunk(2)
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()} | {"query": query, "key": key}
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name


@both
def test_training_can_leave_the_convolution(kind):
    """The target is the mean over the whole image, or window, which no kernel at the pixel itself gives."""
    conv = nn.Conv2d(4, 4, 3, padding=1)
    nn.init.zeros_(conv.weight)
    with torch.no_grad():
        conv.weight[:, :, 1, 1] = torch.eye(4)
    layer = KINDS[kind].from_convolution(conv, locality_strength=8.0, **({"gate": 8.0} if kind == "gpsa" else {}))
    for parameter in (layer.weight, layer.bias):
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=0.2, eps=1e-15)
    losses = []
    for _ in range(120):
        x = torch.randn(8, 4, 5, 5)
        target = x.mean((2, 3), keepdim=True).expand_as(x) if kind == "gpsa" else nn.functional.avg_pool2d(x, 3, 1, 1)
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@both
@pytest.mark.parametrize("shape", ["stride", "5", "groups", "half padding"])
def test_a_trained_layer_is_its_equation(kind, shape):
    """Σ_t W_t Σ_j A^t_ij x_j + b, one query, tap and key at a time."""
    conv = nn.Conv2d(4, 6, **SHAPES[shape]).double()
    layer = moved(KINDS[kind].from_convolution(conv))
    x = torch.randn(1, 4, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)
        expected = torch.zeros_like(y) + layer.bias[:, None, None]
        places, taps = list(queries(layer, (5, 6))), layer.weight.flatten(2)  # [O, C/groups, n]
        own, share = 6 // layer.groups, 4 // layer.groups
        for (out_row, out_col), (row, col) in places:
            for tap in range(layer.num_heads):
                weights = literal_weights(layer, x[0], tap, row, col)
                seen = sum(weight * x[0, :, r, c] for (r, c), weight in weights.items())
                for out in range(6):
                    first = out // own * share
                    expected[0, out, out_row, out_col] += taps[out, :, tap] @ seen[first : first + share]
    torch.testing.assert_close(y, expected)


def queries(layer, size):
    """(output's row and column), (query's row and column): the centre of the window that the output reads."""
    axes = zip(layer.kernel_size, layer.stride, layer.dilation, layer.padding, size, strict=True)
    places = []
    for kernel, stride, dilation, padding, length in axes:
        reach = dilation * (kernel - 1)
        starts = range(-padding, length + padding - reach, stride)
        places.append([(index, start + reach // 2) for index, start in enumerate(starts)])
    for out_row, row in places[0]:
        for out_col, col in places[1]:
            yield (out_row, out_col), (row, col)


def literal_weights(layer, image, tap, row, col):
    """(row, col) of a key inside the image → its weight."""
    height, width = image.shape[1:]
    size = layer.head_dim
    query, key = layer.qk.weight.unflatten(0, (2, layer.num_heads, size))[:, tap]
    q = query @ image[:, row, col]
    inside = [(r, c) for r in range(height) for c in range(width)]
    if isinstance(layer, LocalAttentionConv2d):
        q = q + layer.query_bias.unflatten(0, (layer.num_heads, size))[tap]
        reach, logits = (layer.window - 1) // 2, {}
        for a in range(layer.window):
            for b in range(layer.window):
                place = row + a - reach, col + b - reach
                r = torch.cat((layer.row_embedding[tap, a], layer.col_embedding[tap, b]))
                if place in inside:
                    logits[place] = q @ (key @ image[:, place[0], place[1]]) + q @ r
                elif layer.border == "zeros":
                    logits[place] = q @ r
        shares = softmax(logits)
        return {place: shares[place] for place in shares if place in inside}
    content = softmax({(r, c): q @ (key @ image[:, r, c]) / size**0.5 for r, c in inside})
    square, linear_row, linear_col = layer.v_pos[tap]
    around = layer.padding if layer.border == "zeros" else (0, 0)
    keys = [(r, c) for r in range(-around[0], height + around[0]) for c in range(-around[1], width + around[1])]
    position = softmax(
        {
            (r, c): square * ((r - row) ** 2 + (c - col) ** 2) + linear_row * (r - row) + linear_col * (c - col)
            for r, c in keys
        }
    )
    gate = layer.gate[tap].sigmoid()
    return {place: (1 - gate) * content[place] + gate * position[place] for place in inside}


def softmax(logits):
    values = torch.stack(list(logits.values())).softmax(0)
    return dict(zip(logits, values, strict=True))


@pytest.mark.parametrize("shape", ["stride", "5", "7 depthwise", "half padding"])
def test_large_grids_are_computed_without_maps_to_the_same_result(shape, monkeypatch):
    layer = moved(GatedAttentionConv2d.from_convolution(nn.Conv2d(6, 6, **SHAPES[shape]).double(), head_dim=4))
    x = torch.randn(2, 6, 7, 9, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    dense = layer(x)
    monkeypatch.setattr("nearsight.nn.attention_conv.LARGEST_DENSE", 1)
    monkeypatch.setattr(layer, "weights", None)
    fast = layer(x)
    torch.testing.assert_close(fast, dense)
    direction = torch.randn_like(dense)
    for a, b in zip(
        torch.autograd.grad(fast, inputs, direction), torch.autograd.grad(dense, inputs, direction), strict=True
    ):
        torch.testing.assert_close(a, b)


@both
def test_the_border_mask_is_another_function_in_the_stated_rim_alone(kind):
    conv = nn.Conv2d(3, 4, 5, padding=2).double()
    layer = exactly(kind, conv, border="mask")
    x = torch.randn(1, 3, 9, 11, dtype=torch.float64)
    difference = (layer(x) - conv(x)).abs()
    assert layer.rim == 2
    assert difference[..., 2:-2, 2:-2].max() < 1e-13
    assert difference.max() > 0.01
    replicate = nn.Conv2d(3, 4, 5, padding=2, padding_mode="replicate").double()
    replicate.load_state_dict(conv.state_dict())
    torch.testing.assert_close(layer(x), replicate(x), rtol=0, atol=1e-13)


def test_a_window_may_be_wider_than_the_kernel():
    conv = nn.Conv2d(4, 4, 3, padding=1, stride=2).double()
    x = torch.randn(1, 4, 8, 9, dtype=torch.float64)
    layer = exactly("local", conv, window=7)
    y, weights = layer(x, need_weights=True)
    torch.testing.assert_close(y, conv(x), rtol=0, atol=1e-13)
    assert weights.shape == (1, 4, 5, 9, 7, 7)
    with pytest.raises(ValueError, match=r"window=2 .* use 3"):
        LocalAttentionConv2d(conv, window=2)


@both
def test_names_and_shapes_of_weight_and_bias_are_the_convolutions(kind):
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    state = KINDS[kind].from_convolution(conv).state_dict()
    for name, value in conv.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0)


@both
def test_under_autocast_it_computes_in_bfloat16(kind):
    layer = KINDS[kind].from_convolution(nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(1, 4, 6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)


class Normed(nn.Conv2d):
    pass


@pytest.mark.parametrize(
    ("conv", "words"),
    [
        (nn.Conv2d(2, 2, 1), "1×1"),
        (Normed(2, 2, 3), "Normed is not a plain"),
        (nn.Conv2d(2, 2, 3, padding=2), "outside the image"),
    ],
)
def test_a_convolution_that_cannot_be_attention_is_refused_with_the_reason(conv, words):
    assert words in refusal(conv)
    with pytest.raises(ValueError, match=words):
        GatedAttentionConv2d(conv)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"border": "wrap"}, "border"),
        ({"locality_strength": 0}, "locality_strength"),
        ({"gate": float("nan")}, "gate"),
        ({"head_dim": 0}, "head_dim"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        GatedAttentionConv2d(nn.Conv2d(2, 2, 3), **options)


def test_an_image_smaller_than_the_kernel_is_refused():
    with pytest.raises(ValueError, match="does not fit images of 2x2"):
        GatedAttentionConv2d(nn.Conv2d(2, 2, 3))(torch.randn(1, 2, 2, 2))
