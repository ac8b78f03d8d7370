"""timm's own checks of a model (its tests/test_models.py), on ours through timm's registry."""

import runpy
import sys

import pytest
import timm
import torch
from timm.models import FeatureInfo
from timm.optim import param_groups_layer_decay, param_groups_weight_decay

import nearsight.timm
from nearsight.models import create_model
from nearsight.weights import to_timm

EVERYWHERE = timm.list_models("nearsight_*")
SHALLOW = ("convit_nano_32", "deit_nano_32_distilled", "convit_tiny", "resnet26", "sasa_resnet26")
NAMES = [
    pytest.param(name, marks=() if name in {f"nearsight_{one}" for one in SHALLOW} else pytest.mark.slow)
    for name in EVERYWHERE
]
every_model = pytest.mark.parametrize("name", NAMES)


def build(name, **arguments):
    """A shallow, narrow network of this kind; in the slow tests, of all sizes, it is as wide as it is called."""
    small = {"layers": (1, 1, 1, 1), "width_multiplier": 0.25} if "resnet" in name else {"depth": 3}
    return timm.create_model(name, **{**small, **arguments})


def images(name, batch=1):
    side = 64 if "resnet" in name or not name.endswith("2") else 32
    return torch.randn(batch, 3, side, side + 32)


def test_every_classifier_is_registered():
    ours = {name for name in nearsight.models.list_models() if not name.startswith("retinanet")}
    assert {name.removeprefix("nearsight_") for name in EVERYWHERE} == ours
    assert set(timm.list_models(module="timm")) == set(EVERYWHERE)


def test_the_outputs_are_those_of_our_own_model():
    torch.manual_seed(0)
    model = create_model("convit_nano_32", num_classes=4).eval()
    theirs = timm.create_model("nearsight_convit_nano_32", num_classes=4).eval()
    theirs.load_state_dict(model.state_dict())
    shown = torch.randn(2, 3, 32, 40)
    torch.testing.assert_close(theirs(shown), model(shown))


@every_model
def test_forward_and_gradient_checkpointing(name):
    model, shown = build(name).eval(), images(name)
    outputs = model(shown)
    assert outputs.shape == (1, 1000)
    assert outputs.isfinite().all()
    model.set_grad_checkpointing()
    torch.testing.assert_close(model(shown), outputs, rtol=1e-4, atol=1e-5)


@every_model
def test_backward_reaches_every_parameter(name):
    model = build(name, num_classes=42, drop_path_rate=0.1).train()
    outputs = model(images(name, 2))
    assert outputs.shape == (2, 42)
    outputs.mean().backward()
    assert [one for one, parameter in model.named_parameters() if parameter.grad is None] == []


@every_model
def test_configuration_and_head_reset(name):
    with torch.device("meta"):
        model = build(name, device="meta", dtype=torch.float32).eval()
    config, shown = model.default_cfg, torch.randn(1, *model.default_cfg["input_size"], device="meta")
    assert model.pretrained_cfg is config
    state = model.state_dict()
    listed = [config[key] if isinstance(config[key], tuple) else (config[key],) for key in ("classifier", "first_conv")]
    assert {f"{part}.weight" for parts in listed for part in parts} <= state.keys()
    features = model.forward_features(shown)
    before_logits = model.forward_head(features, pre_logits=True)
    assert before_logits.shape == (1, model.head_hidden_size)
    assert features.shape[1 if features.ndim == 4 else -1] == model.num_features
    if config["pool_size"]:
        assert features.shape[2:] == config["pool_size"]
    model.reset_classifier(0)
    assert model.num_classes == 0
    assert model(shown).shape == before_logits.shape
    model.reset_classifier(0, "")
    assert model(shown).shape == features.shape
    model = build(name, num_classes=0, global_pool="", device="meta", dtype=torch.float64).eval()
    assert model(shown.double()).shape == features.shape
    model.reset_classifier(2)
    heads = model.get_classifier()
    made = [p for head in (heads if isinstance(heads, tuple) else (heads,)) for p in head.parameters()]
    assert {(p.device.type, p.dtype) for p in made} == {("meta", torch.float64)}
    assert not any(part.training for part in model.modules())


@every_model
def test_features(name):
    model, shown = build(name, features_only=True).eval(), images(name)
    maps = model(shown)
    assert len(maps) >= 3
    for found, channels, stride in zip(
        maps, model.feature_info.channels(), model.feature_info.reduction(), strict=True
    ):
        assert found.shape == (1, channels, shown.shape[2] // stride, shown.shape[3] // stride)
    sum(found.sum() for found in maps).backward()
    unused = [one for one, parameter in model.named_parameters() if parameter.grad is None]
    assert not unused  # DistributedDataParallel would wait for them


@every_model
def test_intermediates(name):
    model, shown = build(name).eval(), images(name)
    info = FeatureInfo(model.feature_info, len(model.feature_info))
    features, maps = model.forward_intermediates(shown)
    for found, channels, stride in zip(maps, info.channels(), info.reduction(), strict=True):
        assert found.shape == (1, channels, shown.shape[2] // stride, shown.shape[3] // stride)
    torch.testing.assert_close(features, model.forward_features(shown))
    (early,) = model.forward_intermediates(shown, indices=[1], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(early, maps[1])
    torch.testing.assert_close(model.forward_intermediates(shown, 2, intermediates_only=True), maps[-2:])
    if "resnet" not in name:
        (tokens, prefix), *_ = model.forward_intermediates(
            shown, [2], return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
        )
        torch.testing.assert_close(torch.cat((prefix, tokens), dim=1), features)


@every_model
def test_parameter_groups_of_timms_optimisers(name):
    model = build(name)
    decayed = param_groups_weight_decay(model, 0.1, model.no_weight_decay())
    grouped = param_groups_layer_decay(model, 0.1, model.no_weight_decay(), layer_decay=0.5)
    for groups in (decayed, grouped):
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert len({group["lr_scale"] for group in grouped}) >= 4


def test_wrong_pools_and_formats_are_named():
    with pytest.raises(ValueError, match="global_pool must be one of '', 'avg', 'token', not 'max'"):
        build("nearsight_convit_nano_32", global_pool="max")
    with pytest.raises(ValueError, match="reads its two tokens"):
        build("nearsight_deit_nano_32_distilled", global_pool="avg")
    model = build("nearsight_convit_nano_32")
    with pytest.raises(ValueError, match="output_fmt must be 'NCHW' or 'NLC', not 'NHWC'"):
        model.forward_intermediates(torch.zeros(1, 3, 32, 32), output_fmt="NHWC")


def test_published_weights_are_taken_by_their_names(tmp_path):
    torch.manual_seed(0)
    published = timm.create_model("convit_tiny").eval()
    torch.save(published.state_dict(), tmp_path / "published.pth")
    overlay = {"file": str(tmp_path / "published.pth")}
    model = timm.create_model("nearsight_convit_tiny", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    shown = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(model(shown), published(shown), rtol=1e-4, atol=1e-4)
    assert model.pretrained_cfg["hf_hub_id"] == timm.models.get_pretrained_cfg("convit_tiny").hf_hub_id


@pytest.mark.parametrize("ours", nearsight.timm.TWINS)
def test_twins_have_the_same_tensors(ours):
    with torch.device("meta"):
        translated = to_timm(create_model(ours).state_dict())
        theirs = timm.create_model(nearsight.timm.TWINS[ours]).state_dict()
    assert {name: value.shape for name, value in translated.items()} == {n: v.shape for n, v in theirs.items()}


def test_scripts_know_the_models(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, timm\nif __name__ == '__main__':\n    print(sys.argv, len(timm.list_models('near*')))\n"
    )
    monkeypatch.setattr(sys, "argv", ["nearsight.timm", str(script), "--words"])
    runpy.run_module("nearsight.timm", run_name="__main__")
    assert capsys.readouterr().out == f"{[str(script), '--words']} {len(EVERYWHERE)}\n"
    monkeypatch.setattr(sys, "argv", ["nearsight.timm"])
    with pytest.raises(SystemExit, match="usage: python -m nearsight"):
        runpy.run_module("nearsight.timm", run_name="__main__")
