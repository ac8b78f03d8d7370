"""Looking into converted networks: every layer has a view, and its map is what the layer uses."""

import pytest
import torch
import torchvision
from torch import nn

from nearsight import create_model
from nearsight.analysis import head_profiles
from nearsight.analysis.walk import inspectable, looking, num_attention_layers, walk
from nearsight.convert import converted_layers, to_attention


def moved(model):
    for layer in converted_layers(model).values():
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.03)
    return model.double().eval()


@pytest.mark.parametrize("kind", ["gpsa", "local"])
def test_a_views_map_is_the_layers_own(kind):
    """Of a stride of 1 and a border without padding, where no query and no weight is left out."""
    model = moved(to_attention(torchvision.models.resnet18(), "layer4.1", kind, border="mask").model)
    images = torch.randn(2, 3, 96, 128, dtype=torch.float64)
    given = {}
    layers = converted_layers(model)
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda module, inputs, name=name: given.update({name: inputs[0]}))
    with looking(model):
        views = list(walk(inspectable(model), images))
        assert [view.name for view in views] == list(layers) == ["layer4.1.conv1", "layer4.1.conv2"]
        for view, (name, layer) in zip(views, layers.items(), strict=True):
            _, weights = layer(given[name], need_weights=True)
            torch.testing.assert_close(view.weights().double(), weights, rtol=1e-4, atol=1e-5)
    assert num_attention_layers(model) == 2


@pytest.mark.parametrize("kind", ["gpsa", "local"])
def test_profiles_of_our_resnet_after_conversion_say_that_heads_are_on_their_taps(kind):
    model = create_model(
        "resnet26", num_classes=5, width_multiplier=0.25, converted={"stages": [1, 2], "kind": kind}
    ).eval()
    profiles = head_profiles(model, torch.randn(2, 3, 64, 96))
    assert len(profiles) == 3 * 9
    assert profiles[0].layer_name == "layer1.0.mixer"
    middle = [profile for profile in profiles if profile.head == 4]
    assert all(profile.nonlocality < 1e-4 for profile in middle)
    corner = next(profile for profile in profiles if profile.layer == 0 and profile.head == 0)
    assert corner.measured_center == pytest.approx((-1, -1), abs=0.1)
    if kind == "gpsa":
        assert corner.center == pytest.approx((-1, -1), abs=1e-5)
        assert corner.gate_value > 0.999


def test_a_sasa_network_shows_its_own_layers_beside_converted_ones():
    model = create_model(
        "sasa_resnet26_convstem", num_classes=5, width_multiplier=0.5, attention_stages=(4,), converted={"stages": [3]}
    ).eval()
    with looking(model):
        kinds = [view.kind for view in walk(inspectable(model), torch.randn(1, 3, 64, 64))]
    assert kinds == ["gpsa"] * 4 + ["local"]
    assert num_attention_layers(model) == 5
    _, maps = model(torch.randn(1, 3, 64, 64), need_weights=True)
    assert len(maps) == 5
