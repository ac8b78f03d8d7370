"""Weights in: every source, other names, sizes, classes, channels and windows, and how pictures are shown."""

from __future__ import annotations

import argparse
import json

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models import adapt_input_conv
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn
from torchvision.models import resnet50 as torchvision_resnet50
from torchvision.models.detection import retinanet_resnet50_fpn

import nearsight
from nearsight.images.preprocessing import Preprocessing, preprocessing_of
from nearsight.weights import find_weights, fit, from_timm, read_weights, to_timm, to_torchvision_detector

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def shaken(model: nn.Module) -> nn.Module:
    """A model whose weights and running statistics differ everywhere, as trained ones do."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.1, generator=generator)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def the_same(ours: nn.Module, theirs: nn.Module, side: int, channels: int = 3) -> bool:
    images = torch.randn(2, channels, side, side)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), **CLOSE)
    return True


@pytest.fixture(scope="module")
def convit(tmp_path_factory):
    """timm's ConViT, and its weights as the released program's own checkpoints have them."""
    theirs = shaken(timm.create_model("convit_tiny", num_classes=7))
    path = tmp_path_factory.mktemp("released") / "checkpoint.pth"
    state = {f"module.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"model": state, "optimizer": {"state": {}}, "epoch": 3, "args": argparse.Namespace(lr=5e-4)}, path)
    return theirs, path


def test_a_released_convit_checkpoint(convit):
    theirs, path = convit
    ours = nearsight.create_model("convit_tiny", weights=path)  # as many classes as the weights have
    assert the_same(ours, theirs, 224)
    back = to_timm(ours.state_dict())
    assert all(torch.equal(back[name], value) for name, value in theirs.state_dict().items())
    report = ours.weights_report
    assert (report.style, report.matched) == ("timm's names", 180)
    assert not report.adapted
    assert not report.new
    assert not report.left_out


def test_a_released_convit_checkpoint_at_another_size_and_number_of_classes(convit):
    theirs, path = convit
    ours = nearsight.create_model("convit_tiny", weights=path, img_size=96, num_classes=5)
    report = ours.weights_report
    assert report.adapted == ["pos_embed from 14×14 patches to 6×6"]
    assert report.new == ["head.weight", "head.bias"]
    assert any("177 tensors as they are" in line for line in report.lines())
    twin = timm.create_model("convit_tiny", num_classes=5, img_size=96)
    state = {**theirs.state_dict(), **{name: ours.state_dict()[name] for name in report.new}}
    state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], [6, 6], num_prefix_tokens=0)
    twin.load_state_dict(state)
    assert the_same(ours, twin, 96)


@pytest.mark.parametrize("channels", [1, 4])
def test_deit_at_another_size_and_number_of_channels(channels, tmp_path):
    theirs = shaken(timm.create_model("deit_tiny_patch16_224", num_classes=7, depth=2))
    save_file(theirs.state_dict(), tmp_path / "deit.safetensors")
    ours = nearsight.create_model(
        "deit_tiny", weights=tmp_path / "deit.safetensors", depth=2, img_size=64, in_chans=channels
    )
    twin = timm.create_model("deit_tiny_patch16_224", num_classes=7, depth=2, img_size=64, in_chans=channels)
    state = checkpoint_filter_fn(theirs.state_dict(), twin)
    first = "patch_embed.proj.weight"
    state[first] = adapt_input_conv(channels, theirs.state_dict()[first])
    twin.load_state_dict(state)
    assert the_same(ours, twin, 64, channels)
    adapted = {f"{first} from 3 channels to {channels}", "pos_embed from 14×14 patches to 4×4"}
    assert set(ours.weights_report.adapted) == adapted


def test_torchvision_resnet_and_back(tmp_path):
    theirs = shaken(torchvision_resnet50(weights=None, num_classes=7))
    torch.save(theirs.state_dict(), tmp_path / "resnet50.pth")
    ours = nearsight.create_model("resnet50", weights=tmp_path / "resnet50.pth")
    assert the_same(ours, theirs, 64)
    again = torchvision_resnet50(weights=None, num_classes=7)
    again.load_state_dict(to_timm(ours.state_dict()))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in theirs.state_dict().items())


def test_torchvision_retinanet_and_back(tmp_path):
    theirs = shaken(retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=11))
    torch.save(theirs.state_dict(), tmp_path / "retinanet.pth")
    like_theirs = {"weights": tmp_path / "retinanet.pth", "norm": "none", "scales_per_level": 3}
    ours = nearsight.create_model("retinanet_resnet50", **like_theirs)
    assert ours.num_classes == 11
    assert ours.weights_report.style == "torchvision's names"
    back = to_torchvision_detector(ours.state_dict())
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(back[name], value) for name, value in theirs.state_dict().items())
    fewer = nearsight.create_model("retinanet_resnet50", num_classes=4, **like_theirs)
    assert fewer.weights_report.new == ["heads.classes.predictor.weight", "heads.classes.predictor.bias"]


def test_a_window_of_another_size_keeps_the_offsets_that_both_have(tmp_path):
    wide = shaken(nearsight.create_model("sasa_resnet26", num_classes=3, width_multiplier=0.25, kernel_size=7))
    save_file(wide.state_dict(), tmp_path / "w.safetensors")
    sizes = {"width_multiplier": 0.25, "weights": tmp_path / "w.safetensors"}
    narrow = nearsight.create_model("sasa_resnet26", kernel_size=5, **sizes)
    wider = nearsight.create_model("sasa_resnet26", kernel_size=9, **sizes)
    old, less, more = (model.layer2[0].mixer.row_embedding for model in (wide, narrow, wider))
    assert torch.equal(less, old[:, 1:-1])
    assert torch.equal(more[:, 1:-1], old)
    assert torch.equal(more[:, 0], old[:, 0])
    assert "from a window of 7 to 5" in narrow.weights_report.adapted[0]


def test_what_fits_nowhere_is_named(convit):
    _, path = convit
    with pytest.raises(ValueError, match=r"does not fit the model: .*instead of"):
        nearsight.create_model("convit_small", weights=path)
    with pytest.raises(ValueError, match="does not say which network it is for: name one"):
        nearsight.create_model(weights=path)
    with pytest.raises(ValueError, match="there are no weights at"):
        nearsight.create_model("convit_tiny", weights=path.with_name("gone.pth"))
    with pytest.raises(ValueError, match="download=True has nothing to fetch"):
        nearsight.create_model("convit_tiny", download=True)


class _Stranger:
    """A class that no checkpoint needs."""


@pytest.mark.parametrize("held", [_Stranger(), argparse.Namespace(inside=_Stranger())])
def test_only_harmless_containers_are_read(held, tmp_path):
    torch.save({"model": {"weight": torch.zeros(1)}, "args": held}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="it holds more than tensors") as refused:
        read_weights(tmp_path / "w.pth")
    assert "argparse.Namespace" not in str(refused.value)


def test_averaged_weights_of_a_checkpoint_come_first_and_wrappers_go(tmp_path):
    inner = {"module._orig_mod.weight": torch.ones(2)}
    torch.save({"state_dict": {"weight": torch.zeros(2)}, "state_dict_ema": inner}, tmp_path / "w.pth")
    assert {name: value.tolist() for name, value in read_weights(tmp_path / "w.pth").items()} == {"weight": [1, 1]}


# Published names, from caches on this machine: nothing connects


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub's cache in which a test puts files; every attempt to connect fails."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(cache))

    def refuse(*arguments, **options):
        raise AssertionError("it connects")

    monkeypatch.setattr("socket.socket.connect", refuse)

    def put(repo: str, name: str, state: dict | str) -> None:
        folder = cache / f"models--{repo.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text("0" * 40)
        if isinstance(state, str):
            (snapshot / name).write_text(state)
        else:
            save_file(state, snapshot / name)

    return put


def test_timms_published_weights_from_the_cache(convit, hub):
    theirs, _ = convit
    with pytest.raises(ValueError, match=r"timm:convit_tiny are not on this machine; --download .* fetches them from"):
        nearsight.create_model(weights="timm:convit_tiny")
    hub("timm/convit_tiny.fb_in1k", "model.safetensors", theirs.state_dict())
    ours = nearsight.create_model(weights="timm:convit_tiny")
    assert the_same(ours, theirs, 224)
    assert preprocessing_of(ours) == Preprocessing()


def test_preprocessing_travels_with_published_weights(hub):
    found = find_weights("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert found.network.model == "timm:vit_tiny_patch16_224"
    assert found.preprocessing == Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
    assert find_weights("torchvision:ResNet50_Weights.IMAGENET1K_V1").preprocessing.interpolation == "bilinear"
    assert find_weights("torchvision:retinanet_resnet50_fpn").batch_norm_eps == 0.0


def test_a_repository_and_a_folder_as_timm_writes_them(hub, tmp_path):
    theirs = shaken(timm.create_model("deit_tiny_patch16_224", num_classes=3))
    shown = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2], "interpolation": "bilinear", "input_size": [3, 224, 224]}
    config = json.dumps({"architecture": "deit_tiny_patch16_224", "num_classes": 3, "pretrained_cfg": shown})
    hub("somebody/deit", "config.json", config)
    hub("somebody/deit", "model.safetensors", theirs.state_dict())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(config)
    save_file(theirs.state_dict(), tmp_path / "folder" / "model.safetensors")
    for source in ("hub:somebody/deit", tmp_path / "folder"):
        ours = nearsight.create_model(weights=source)
        assert the_same(ours, theirs, 224)
        assert preprocessing_of(ours) == Preprocessing((0.5, 0.4, 0.3), (0.2, 0.2, 0.2), "bilinear")


def test_a_folder_of_one_of_our_models_as_timm_knows_them(tmp_path):
    model = shaken(nearsight.create_model("convit_nano_32", num_classes=3, depth=3))
    config = {"architecture": "nearsight_convit_nano_32", "model_args": {"depth": 3}, "num_classes": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert the_same(nearsight.create_model(weights=tmp_path), model, 32)


def test_torchvisions_published_weights_from_its_cache(tmp_path, monkeypatch, hub):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    theirs = shaken(torchvision_resnet50(weights=None))
    with pytest.raises(ValueError, match="--download"):
        nearsight.create_model(weights="torchvision:resnet50")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(theirs.state_dict(), tmp_path / "hub" / "checkpoints" / "resnet50-11ad3fa6.pth")
    assert the_same(nearsight.create_model(weights="torchvision:resnet50"), theirs, 64)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("timm:convit_tinny", "timm has no published weights named 'convit_tinny'"),
        ("torchvision:resnet5", "torchvision has no weights named 'resnet5'"),
        ("torchvision:vgg11", "no network here is the same as torchvision's vgg11"),
        ("hub:../etc", "a repository of the hub is written hub:OWNER/NAME"),
    ],
)
def test_names_that_are_not_published(source, words, hub):
    with pytest.raises(ValueError, match=words):
        find_weights(source)


def test_a_failed_download_says_so(monkeypatch):
    def unreachable(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *arguments: None)
    with pytest.raises(ValueError, match=r"timm:convit_tiny could not be fetched: no route to host"):
        find_weights("timm:convit_tiny", download=True).read()


def test_folders_that_hold_no_weights(tmp_path):
    with pytest.raises(ValueError, match="is neither a run"):
        find_weights(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="and no weights"):
        find_weights(tmp_path)
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="names no architecture"):
        find_weights(tmp_path)


def test_our_own_names_stay_as_they_are():
    ours = nearsight.create_model("convit_nano_32", num_classes=3)
    again = nearsight.create_model("convit_nano_32", num_classes=3)
    report = fit(again, ours.state_dict(), "ours")
    assert report.style == ""
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in ours.state_dict().items())
    assert from_timm(to_timm(ours.state_dict())).keys() == ours.state_dict().keys()
