"""From attention back: the convolution that heads have become, and how much of a layer it is."""

import pytest
import torch
import torchvision
from torch import nn

from nearsight.convert import converted_layers, to_attention, to_convolution


@pytest.mark.parametrize("kind", ["gpsa", "local"])
@pytest.mark.parametrize("with_images", [False, True])
def test_there_and_back_is_the_same_network(kind, with_images):
    cnn = torchvision.models.resnet18().eval()
    images = torch.randn(2, 3, 64, 64)
    back, report = to_convolution(to_attention(cnn, (3, 4), kind).model, images if with_images else None)
    assert not converted_layers(back)
    assert back.state_dict().keys() == cnn.state_dict().keys()
    for name, value in cnn.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], value, rtol=0, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(back(images), cnn(images), rtol=0, atol=1e-4)
    for layer in report.layers:
        assert min(layer.position_in_kernel) > 0.9999
        assert min(layer.position_on_tap) > 0.9999
        assert (layer.explained is None) != with_images
        if with_images:
            assert layer.explained > 0.9999
            assert min(layer.attention_in_kernel) > 0.9999


def one_layer(kind, **options):
    """A network of one layer of attention, 3×3 with padding, in float64."""
    conv = nn.Conv2d(4, 6, 3, padding=1).double()
    return to_attention(nn.Sequential(conv), kind=kind, locality_strength=50.0, **options).model


def test_heads_that_have_moved_are_read_as_another_kernel():
    """Every head moves to its neighbour on the right: the convolution's kernel moves, what leaves it is lost."""
    model = one_layer("gpsa", gate=40.0)
    layer = model[0]
    strength = 50.0
    with torch.no_grad():
        layer.v_pos[:, 2] += 2 * strength  # the centre's column, see Eq. 5
    back, report = to_convolution(model, torch.randn(2, 4, 9, 9, dtype=torch.float64))
    torch.testing.assert_close(back[0].weight[..., 1:], layer.weight[..., :2])
    torch.testing.assert_close(back[0].weight[..., 0], torch.zeros_like(back[0].weight[..., 0]))
    (reading,) = report.layers
    assert reading.position_in_kernel == pytest.approx([1, 1, 0] * 3, abs=1e-12)
    assert reading.position_on_tap == pytest.approx([0] * 9, abs=1e-12)
    assert reading.attention_in_kernel == pytest.approx([1, 1, 0] * 3, abs=1e-12)
    assert 0.4 < reading.explained < 0.9


def test_without_images_the_gates_say_how_much_is_position():
    model = one_layer("gpsa", gate=0.0)
    back, report = to_convolution(model)
    torch.testing.assert_close(back[0].weight, model[0].weight / 2)
    assert report.layers[0].gate_value == pytest.approx([0.5] * 9)
    assert report.layers[0].explained is None


def test_the_explained_share_is_that_of_the_outputs_variance():
    """Half of the attention is uniform. Its part of the output is the image's mean, which no kernel gives."""
    model = one_layer("gpsa", gate=0.0)
    layer = model[0]
    nn.init.zeros_(layer.qk.weight)
    images = torch.randn(3, 4, 6, 7, dtype=torch.float64)
    back, report = to_convolution(model, images)
    with torch.no_grad():
        y = model(images)
        residual = y - back(images)
    unexplained = residual.var((0, 2, 3), unbiased=False).sum() / y.var((0, 2, 3), unbiased=False).sum()
    assert report.layers[0].explained == pytest.approx(1 - unexplained.item())
    assert 0.5 < report.layers[0].explained < 1
    # A tap's pixel has half of its head's attention and, as any pixel, 1/42 of the other half.
    on_taps = 0.5 + 0.5 / 42
    expected = layer.weight * on_taps + 0.5 / 42 * (layer.weight.sum((2, 3), keepdim=True) - layer.weight)
    torch.testing.assert_close(back[0].weight, expected)


def test_a_wide_window_is_read_in_its_middle():
    model = one_layer("local", window=7)
    layer = model[0]
    with torch.no_grad():
        layer.row_embedding.zero_()
        layer.col_embedding.zero_()  # every pixel of the window alike
    back, report = to_convolution(model)
    assert report.layers[0].position_in_kernel == pytest.approx([9 / 49] * 9)
    torch.testing.assert_close(back[0].weight, (layer.weight.sum((2, 3), keepdim=True) / 49).expand_as(layer.weight))


def test_a_network_without_such_layers_is_refused():
    with pytest.raises(ValueError, match="no layers that to_attention made"):
        to_convolution(torchvision.models.resnet18())
