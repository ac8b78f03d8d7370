"""Every registered model: a pinned count, the promises all models keep, and errors that help."""

from functools import partial

import pytest
import torch
from costs import cost_by_name
from torch import nn

from nearsight.cost import count_parameters, known_costs, model_cost
from nearsight.models import create_model, list_models, register
from nearsight.models.resnet import _statistics_held

PINNED = known_costs()
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
    assert count_parameters(model) == PINNED[name]["parameters"]


@pytest.mark.parametrize("name", ["convit_nano_32", "deit_micro_64_distilled", "sasa_resnet26", "resnet26"])
def test_the_stored_cost_is_the_counted_one(name):
    assert model_cost(name) == PINNED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_stored_cost_is_the_counted_one(name):
    assert model_cost(name) == PINNED[name]


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
    size = model.img_size if name.startswith(("deit", "convit")) else (32, 64)
    images = torch.randn(2, 2, *size)
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), model(images))
    assert model(images).shape == (2, 10)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    logits, maps = model(images, need_weights=True)
    torch.testing.assert_close(logits, model(images), atol=1e-5, rtol=1e-5)
    assert len(maps) == NUM_MAPS[name]
    last, intermediates = model.forward_intermediates(images, indices=2)
    torch.testing.assert_close(last, features)
    assert len(intermediates) == 2
    assert all(map_.ndim == 4 for map_ in intermediates)
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)
    model.reset_classifier(0)
    torch.testing.assert_close(model(images).flatten(), model.forward_head(features, pre_logits=True).flatten())


@pytest.mark.parametrize("name", NUM_MAPS)
def test_a_model_without_classes_gives_its_features(name):
    model = create_model(name, num_classes=0).eval()
    images = torch.randn(1, 3, 32, 32) if "resnet" in name else torch.randn(1, 3, *model.img_size)
    assert model(images).shape == (1, model.num_features)


def test_what_weight_decay_spares():
    assert create_model("deit_nano_32_distilled").no_weight_decay() == {"pos_embed", "cls_token", "dist_token"}
    spared = create_model("sasa_resnet26_convstem").no_weight_decay()
    assert len(spared) == 16
    assert "layer1.0.mixer.row_embedding" in spared
    embeddings = {f"stem.attention.{name}_embedding" for name in ("row", "col", "mixture")}
    assert embeddings <= create_model("sasa_resnet26").no_weight_decay()


def test_checkpointing_holds_the_statistics_of_synchronised_norms_too():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(create_model("resnet26", layers=(1, 1, 1, 1)))
    block, images = model.layer1[0], torch.randn(2, 64, 5, 7)
    for norm in (norm for norm in block.modules() if isinstance(norm, nn.SyncBatchNorm)):
        norm.forward = partial(nn.BatchNorm2d.forward, norm)  # one process has nothing to synchronise with
    with _statistics_held(block):
        block(images)
    assert all(norm.num_batches_tracked == 0 and not norm.running_mean.any() for norm in (block.bn1, block.bn2))


@pytest.mark.parametrize("name", NUM_MAPS)
@pytest.mark.parametrize("intermediates", [False, True])
def test_gradient_checkpointing_recomputes_and_changes_nothing_else(name, intermediates):
    model = create_model(name, num_classes=3).train()
    images = torch.randn(2, 3, 64, 64)
    blocks = list(model.blocks) if name.startswith(("deit", "convit")) else [b for stage in model.stages for b in stage]
    calls = []
    blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    start = {key: value.clone() for key, value in model.state_dict().items()}
    results = []
    for enable, expected_calls in ((False, 1), (True, 2)):
        model.load_state_dict(start)
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        calls.clear()
        outputs = model.forward_intermediates(images)[0] if intermediates else model(images)
        outputs.square().sum().backward()
        assert len(calls) == expected_calls
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        statistics = {n: b.clone().double() for n, b in model.named_buffers()}
        results.append({**gradients, **statistics})
    torch.testing.assert_close(results[1], results[0])


def test_names_by_pattern():
    assert list_models("sasa_resnet26*") == ["sasa_resnet26", "sasa_resnet26_convstem"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: create_model("convit_tinny"), "did you mean convit_tiny"),
        (lambda: create_model("zzz"), "`nearsight models` lists them all"),
        (lambda: create_model(None), "no model is named None"),
        (lambda: create_model("resnet50", img_size=64), "'resnet50' does not take the argument 'img_size'"),
        (lambda: create_model("convit_tiny", num_head=3), "did you mean num_heads"),
        (lambda: create_model("convit_tiny", num_classes="10"), "num_classes must be a whole number .* not '10'"),
        (lambda: create_model("convit_tiny", num_classes=True), "num_classes must be a whole number"),
        (lambda: create_model("convit_tiny", mlp_ratio="4"), "mlp_ratio must be a finite number, not '4'"),
        (lambda: create_model("convit_tiny", gate="a"), "gate must be a finite number"),
        (lambda: create_model("convit_tiny", locality_strength=float("inf")), "locality_strength must be a finite"),
        (lambda: create_model("convit_tiny", locality_strength=1e38), "locality_strength must be positive and at most"),
        (lambda: create_model("resnet26", num_classes=-3), "num_classes must be a whole number of at least 0, not -3"),
        (lambda: create_model("resnet26", layers=5), "blocks of each of four stages"),
        (lambda: create_model("resnet26", width_multiplier="a"), "width_multiplier must be a finite number"),
        (lambda: create_model("resnet26", stem_values="foo"), "stem_values must be one of"),
        (lambda: create_model("sasa_resnet26", attention={"foo": 1}), "attention has no option 'foo'; choose from"),
        (lambda: create_model("sasa_resnet26", attention="zeros"), "attention holds options"),
        (lambda: create_model("sasa_resnet26", num_heads=64), "num_heads=64 does not cut the 64 channels of stage 1"),
        (lambda: create_model("convit_tiny", depth="6"), "depth must be a whole number of at least 1, not '6'"),
        (lambda: create_model("convit_tiny", patch_size=0), "patch_size must be a whole number"),
        (lambda: create_model("convit_tiny", drop_path_rate=1.5), r"drop_path_rate must lie in \[0, 1\), not 1.5"),
        (lambda: create_model("convit_tiny", img_size="32"), "an image size is one side"),
        (lambda: create_model("convit_tiny", img_size=(32, 32, 3)), "an image size is one side"),
        (lambda: create_model("convit_tiny_distilled", pool="mean"), "reads its two tokens"),
        (lambda: create_model("resnet50", layers=(1, 1, 1)), "blocks of each of four stages"),
        (lambda: create_model("sasa_resnet26", num_heads=6), "num_heads=6 does not cut the 64 channels"),
        (lambda: create_model("resnet50", num_heads=0), "num_heads must be a whole number"),
        (lambda: create_model("resnet50", attention_stages=3), "attention_stages lists stages"),
        (lambda: create_model("resnet26").forward_intermediates(torch.randn(1, 3, 32, 32), [4]), "no layer 4"),
        (lambda: create_model("deit_nano_32").forward_intermediates(torch.randn(1, 3, 32, 32), 7), "the last 7 layers"),
        (lambda: create_model("resnet26")(torch.randn(1, 3, 0, 32)), "0x32 have no pixels"),
        (lambda: create_model("resnet26").set_input_size("big"), "an image size is one side"),
        (lambda: create_model("resnet26")(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)), "divide by 255"),
        (
            lambda: create_model("resnet26")(torch.zeros(1, 3, 32, 32).double()),
            "images are torch.float64 but the weights",
        ),
        (
            lambda: create_model("convit_tiny", img_size=225),
            "225x225 is not divisible by the patch of 16; resize to 224x224",
        ),
        (lambda: create_model("convit_tiny", num_heads=5), "width=192 is not divisible by num_heads=5"),
        (lambda: create_model("convit_tiny", num_gated_blocks=13), "between 0 and depth=12"),
        (lambda: create_model("convit_tiny", num_gated_blocks="all"), "num_gated_blocks='all' must lie between 0"),
        (lambda: create_model("convit_tiny", num_gated_blocks=12, pool="token"), "use pool='mean'"),
        (lambda: create_model("resnet50", attention_stages=(0, 5)), r"from 1 to 4; got \(0, 5\)"),
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
