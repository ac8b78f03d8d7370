"""Every registered model: a pinned count, the promises all models keep, and errors that help."""

import json
from pathlib import Path

import pytest
import torch

from nearsight.models import cost_by_name, count_parameters, create_model, list_models, register
from nearsight.models.flops import own_size

PINNED = json.loads((Path(__file__).parent / "parameter_counts.json").read_text())
# one model of each kind, and how many layers of it have attention maps to show
NUM_MAPS = {
    "deit_nano_32": 6,
    "convit_nano_64_distilled": 6,
    "resnet26": 0,
    "sasa_resnet26_convstem": 8,
    "sasa_resnet26": 8,
}


def test_every_registered_model_has_a_pinned_count_and_no_pin_is_stale():
    assert set(list_models()) == set(PINNED)


@pytest.mark.parametrize("name", list_models())
def test_parameter_count(name):
    with torch.device("meta"):
        model = create_model(name)
    assert count_parameters(model) == PINNED[name]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("convit_tiny", 5_710_512),
        ("convit_tiny_plus", 9_972_912),
        ("convit_small", 27_777_322),
        ("convit_small_plus", 48_979_882),
        ("convit_base", 86_540_040),
        ("convit_base_plus", 153_134_856),
    ],
)
def test_the_six_convits_have_exactly_the_released_parameters(name, parameters):
    assert cost_by_name(name).parameters == parameters


@pytest.mark.parametrize("name", NUM_MAPS)
def test_promises_of_every_model(name):
    model = create_model(name, num_classes=10, in_chans=2).eval()
    size = own_size(model) if name.startswith(("deit", "convit")) else (32, 64)
    images = torch.randn(2, 2, *size)
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), model(images))
    assert model(images).shape == (2, 10)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    assert model.no_weight_decay() <= {parameter for parameter, _ in model.named_parameters()} | {
        "dist_token",
        "pos_embed",
    }
    logits, maps = model(images, need_weights=True)
    torch.testing.assert_close(logits, model(images), atol=1e-5, rtol=1e-5)
    assert len(maps) == len(
        [m for m in model.modules() if "Attention" in type(m).__name__ and hasattr(m, "num_heads")]
    ) - (name == "sasa_resnet26")
    last, intermediates = model.forward_intermediates(images, indices=2)
    torch.testing.assert_close(last, features)
    assert len(intermediates) == 2
    assert all(map_.ndim == 4 for map_ in intermediates)
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)
    model.reset_classifier(0)
    torch.testing.assert_close(model(images).flatten(), model.forward_head(features, pre_logits=True).flatten())


@pytest.mark.parametrize("name", NUM_MAPS)
def test_gradient_checkpointing_changes_nothing(name):
    model = create_model(name, num_classes=3)
    size = own_size(model) if name.startswith(("deit", "convit")) else (32, 32)
    if not name.startswith(("deit", "convit")):
        model.eval()  # batch statistics would be updated twice
    images = torch.randn(2, 3, *size)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain)


def test_names_by_pattern():
    assert list_models("sasa_resnet26*") == ["sasa_resnet26", "sasa_resnet26_convstem"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: create_model("convit_tinny"), "did you mean convit_tiny"),
        (lambda: create_model("zzz"), "`nearsight models` lists them all"),
        (lambda: create_model("resnet50", img_size=64), "does not take these arguments.*img_size"),
        (
            lambda: create_model("convit_tiny", img_size=225),
            "225x225 is not divisible by the patch of 16; resize to 224x224",
        ),
        (lambda: create_model("convit_tiny", num_heads=5), "dim=192 is not divisible by num_heads=5"),
        (lambda: create_model("convit_tiny", num_gated_blocks=13), "between 0 and depth=12"),
        (lambda: create_model("convit_tiny", num_gated_blocks=12, pool="token"), "use pool='mean'"),
        (lambda: create_model("resnet50", attention_stages=(0, 5)), r"\[0, 5\] are none of them"),
        (lambda: create_model("resnet50", width_multiplier=0), "width_multiplier must be positive"),
        (lambda: create_model("deit_nano_32")(torch.randn(1, 3, 33, 32)), "33x32 is not divisible by the patch of 4"),
        (lambda: create_model("deit_nano_32")(torch.randn(1, 1, 32, 32)), "expected 3 channels, got 1"),
        (lambda: create_model("deit_nano_32")(torch.randn(3, 32, 32)), "expected images"),
        (lambda: create_model("deit_nano_32").forward_heads(torch.randn(1, 2, 3)), "distilled=True"),
        (lambda: register("resnet50", object), "registered already"),
    ],
)
def test_bad_input_names_the_value_and_the_remedy(build, message):
    with pytest.raises(ValueError, match=message):
        build()
