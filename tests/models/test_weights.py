"""timm as an oracle: its weights load, its outputs and gradients are ours, and our weights go back."""

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

from nearsight.models import create_model
from nearsight.weights import from_timm, load_weights, to_timm

TWINS = {
    "convit_tiny": "convit_tiny",
    "convit_small": "convit_small",
    "convit_base": "convit_base",
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    "deit_tiny_distilled": "deit_tiny_distilled_patch16_224",
    "resnet50": "resnet50",
}


# The "+" sizes have no timm name: its ViT of their width and heads, at two blocks for speed.
PLUS = {"deit_tiny_plus": (256, 4), "deit_small_plus": (576, 9), "deit_base_plus": (1024, 16)}


def twins(name):
    if name in PLUS:
        width, heads = PLUS[name]
        theirs = TimmVisionTransformer(embed_dim=width, num_heads=heads, depth=2, num_classes=10).eval()
        ours = create_model(name, num_classes=10, depth=2).eval()
    else:
        theirs = timm.create_model(TWINS[name], num_classes=10).eval()
        ours = create_model(name, num_classes=10).eval()
    for parameter in theirs.parameters():  # untrained gates and biases are alike everywhere; make them differ
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    load_weights(ours, from_timm(theirs.state_dict()), "theirs")
    return ours, theirs


@pytest.mark.parametrize("name", [*TWINS, *PLUS])
def test_outputs_gradients_and_round_trip(name):
    ours, theirs = twins(name)
    images = torch.randn(1, 3, 224, 224)
    logits, expected = ours(images), theirs(images)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(expected)
    logits.backward(direction)
    expected.backward(direction)
    ours_by_their_names = to_timm({n: p.grad for n, p in ours.named_parameters()})
    for parameter_name, parameter in theirs.named_parameters():
        gradient = ours_by_their_names[parameter_name]
        scale = parameter.grad.abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(gradient, parameter.grad, atol=2e-4 * scale, rtol=1e-3, msg=parameter_name)
    back = to_timm(ours.state_dict())
    assert back.keys() == theirs.state_dict().keys()
    for tensor_name, tensor in theirs.state_dict().items():
        assert torch.equal(back[tensor_name], tensor)


def test_released_convit_has_180_names():
    assert len(timm.create_model("convit_tiny").state_dict()) == 180
    assert len(create_model("convit_tiny").state_dict()) == 180


def test_the_key_map_is_its_own_inverse():
    state = create_model("convit_nano_32").state_dict()
    assert from_timm(to_timm(state)).keys() == state.keys()
    torch.testing.assert_close(from_timm(to_timm(state)), dict(state))


def test_wrong_weights_are_named():
    with pytest.raises(ValueError, match=r"missing: .*unknown: .*"):
        load_weights(create_model("convit_nano_32"), from_timm(timm.create_model("resnet26").state_dict()), "a ResNet")
    with pytest.raises(ValueError, match=r"head.weight \(1000, 144\) instead of \(7, 144\)"):
        load_weights(create_model("convit_nano_32", num_classes=7), create_model("convit_nano_32").state_dict(), "more")
