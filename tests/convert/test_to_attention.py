"""Whole networks as attention: ours, torchvision's and timm's compute what they did; every layer is accounted for."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from nearsight import create_model
from nearsight.convert import converted_layers, to_attention

NETWORKS = {
    "resnet26": (lambda: create_model("resnet26", num_classes=10), (1, 2, 3, 4), 8),
    "resnet26's last stage": (lambda: create_model("resnet26", num_classes=10), 4, 1),
    "torchvision's resnet18": (torchvision.models.resnet18, None, 16),
    "timm's resnet26d": (lambda: timm.create_model("resnet26d", num_classes=10), (3, 4), 4),
    "timm's mobilenetv3": (lambda: timm.create_model("mobilenetv3_small_050", num_classes=10), None, 11),
}


def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norms as after training: every one scales and shifts, by numbers that are not its neighbour's."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model.eval()


@pytest.mark.parametrize("kind", ["gpsa", "local"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_whole_network_computes_what_it_did(network, kind):
    build, stages, count = NETWORKS[network]
    cnn = with_statistics(build())
    images = torch.randn(4, 3, 64, 48)
    model, report = to_attention(cnn, stages, kind, images=images)
    assert len(converted_layers(model)) == len(report.converted) == count
    with torch.no_grad():
        before, after = cnn(images), model(images)
    assert before.std() > 0.01
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    assert (after.argmax(1) == before.argmax(1)).all()
    assert report.output_difference == pytest.approx((after - before).abs().max().item(), abs=1e-6)
    assert not converted_layers(cnn), "the network that was given stays as it was"


@pytest.mark.parametrize("kind", ["gpsa", "local"])
def test_gradients_reach_positions_gates_queries_and_keys_of_every_layer(kind):
    model = to_attention(create_model("resnet26", num_classes=10, width_multiplier=0.25), (3, 4), kind).model
    model(torch.randn(4, 3, 64, 64)).logsumexp(1).sum().backward()
    for name, layer in converted_layers(model).items():
        query, key = layer.qk.weight.grad.chunk(2)
        own = {"query": query, "key": key, **{one: value.grad for one, value in layer.named_parameters()}}
        for parameter, gradient in own.items():
            assert gradient.abs().max() > 0, (name, parameter)


def test_every_convolution_is_in_the_report_with_its_reason():
    cnn = torchvision.models.resnet18()
    report = to_attention(cnn, (4, "conv1")).report
    assert [layer.name for layer in report.converted] == [
        "conv1", "layer4.0.conv1", "layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2",
    ]  # fmt: skip
    reasons = {layer.name: layer.reason for layer in report.left}
    assert "single tap" in reasons["layer4.0.downsample.0"]
    assert reasons["layer1.0.conv1"] == "not in the chosen stages"
    assert len(report.layers) == sum(isinstance(module, nn.Conv2d) for module in cnn.modules())
    before, after = report.converted[1].parameters
    assert before == 256 * 512 * 9
    assert after == before + 2 * 9 * 32 * 256 + 9 * 3 + 9
    text = str(report)
    for layer in report.layers:
        assert layer.name in text


def test_the_rim_is_stated_in_pixels_and_in_numbers():
    cnn = with_statistics(torchvision.models.resnet18()).double()
    images = torch.randn(2, 3, 96, 96, dtype=torch.float64)
    options = {"gate": 40.0, "locality_strength": 50.0}
    report = to_attention(cnn, 2, images=images, border="mask", **options).report
    strided, plain = report.converted[0], report.converted[1]
    assert (strided.rim, strided.output_size) == (plain.rim, plain.output_size) == (1, (12, 12))
    for layer in report.converted:
        assert layer.inside_difference < 1e-12
        assert layer.rim_difference > 1e-3
    assert report.output_difference > 1e-3
    assert "rim of 1 of 12×12" in str(report)
    assert to_attention(cnn, 2, **options).report.converted[0].rim == 0


def test_reading_differences_leaves_modes_hooks_and_statistics_alone():
    cnn = torchvision.models.resnet18().train()
    cnn.bn1.eval()
    state = {name: value.clone() for name, value in cnn.state_dict().items()}
    model = to_attention(cnn, 4, images=torch.randn(2, 3, 64, 64)).model
    assert cnn.layer1.training
    assert not cnn.bn1.training
    assert not model.bn1.training
    assert model.layer4[0].conv1.training
    assert all(not module._forward_hooks for module in cnn.modules())
    for name, value in cnn.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_a_network_without_numbered_stages_is_converted_whole():
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2)).eval()
    images = torch.randn(2, 3, 8, 9)
    model, report = to_attention(cnn, images=images)
    assert [layer.name for layer in report.converted] == ["0", "2"]
    torch.testing.assert_close(model(images), cnn(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"stages": 7},
            r"no convolution is in stage 7; this network has stages 1, 2, 3, 4, and layers in conv1, layer1",
        ),
        ({"stages": "layer9"}, "'layer9'"),
        ({"kind": "psa"}, "'gpsa', 'local'"),
        ({"stages": 4, "window": 7}, "has no option 'window'; it has border, head_dim, gate, locality_strength"),
        ({"stages": "layer2.0.downsample"}, "no convolution of the chosen stages became attention: a 1×1"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        to_attention(torchvision.models.resnet18(), **arguments)
