"""`nearsight convert`: a run's network as attention and back, in runs that every verb opens."""

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from verbs import nearsight

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.convert import converted_layers
from nearsight.engine.optimizer import decay_groups
from nearsight.explorer.sources import RunSource
from nearsight.models import create_model
from nearsight.recipes.files import freeze
from nearsight.runs.folder import RunFolder
from nearsight.weights.conversion import selected_model

OPTIONS = {"width_multiplier": 0.25}


@pytest.fixture
def run(tmp_path):
    """A run of a small ResNet as training leaves it, without its data."""
    folder = tmp_path / "cnn"
    folder.mkdir()
    recipe = ClassificationRecipe(
        model="resnet26", model_options=OPTIONS, image_size=64, data="gone", batch=8, epochs=1.0, warmup_epochs=0.0
    )
    model = create_model("resnet26", num_classes=3, **OPTIONS)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2)
    (folder / "config.yaml").write_text(freeze(recipe))
    (folder / "classes.txt").write_text("hat\nshirt\nshoes\n")
    (folder / "data.json").write_text('{"train": "a", "val": "b"}')
    store = RunFolder(folder).checkpoints()
    store.save(7, {"model": model.state_dict()}, {"best": {"step": 7, "value": 50.0, "weights": "model"}})
    store.point("best", 7)
    return folder


def outputs(run, images):
    with torch.no_grad():
        return selected_model(RunFolder(run))(images)


@pytest.mark.parametrize("words", [["--stages", 4], ["--kind", "local", "--window", 5, "--stages", 3, "layer4"], []])
def test_there_and_back_every_step_a_run(run, tmp_path, capsys, words):
    images = torch.randn(3, 3, 64, 64)
    before = outputs(run, images)
    assert nearsight("convert", run, "--to", "attention", "--images", 2, "--out", tmp_path / "attention", *words) == 0
    printed = capsys.readouterr().out
    assert "layer4.0.mixer: 3×3, 128 → 128, stride 2 → " in printed
    assert "the same class for 2 of 2 pictures" in printed
    torch.testing.assert_close(outputs(tmp_path / "attention", images), before, rtol=0, atol=1e-4)
    made = converted_layers(selected_model(RunFolder(tmp_path / "attention")))
    assert len(made) == (1 if words[:1] == ["--stages"] else 5 if words else 8)
    config = yaml.safe_load((tmp_path / "attention" / "config.yaml").read_text())
    assert config["model_options"]["width_multiplier"] == 0.25
    assert config["model_options"]["converted"]["kind"] == ("local" if "local" in words else "gpsa")
    report = json.loads((tmp_path / "attention" / "conversion.json").read_text())
    assert report["of"] == "cnn"
    assert len(report["layers"]) == 29

    assert nearsight("convert", tmp_path / "attention", "--to", "convolution", "--images", 2) == 0
    printed = capsys.readouterr().out
    assert "layer4.0.mixer: 100.00 % of position in the kernel" in printed
    back = tmp_path / "attention-convolution-1"
    assert not converted_layers(selected_model(RunFolder(back)))
    torch.testing.assert_close(outputs(back, images), before, rtol=0, atol=1e-4)
    assert RunFolder(back).recipe() == RunFolder(run).recipe()


def test_predict_and_inspect_open_the_new_run(run, tmp_path, capsys):
    attention = tmp_path / "attention"
    nearsight("convert", run, "--to", "attention", "--stages", 4, "--images", 1, "--out", attention)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    shown = []
    for folder in (run, attention):
        capsys.readouterr()
        assert not nearsight("predict", folder, tmp_path / "a.png")
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert nearsight("inspect", attention, "--image", tmp_path / "a.png", "--out", tmp_path / "heads.json") == 0
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert len(rows) == 9
    assert rows[0]["center"] == pytest.approx([-1, -1], abs=1e-5)


def test_the_new_run_begins_with_its_weights(run, tmp_path):
    attention = tmp_path / "attention"
    nearsight("convert", run, "--to", "attention", "--stages", 4, "--images", 1, "--out", attention)
    source = RunSource(attention)
    assert [snapshot.step for snapshot in source.snapshots] == [0]
    weight = RunFolder(run).selected_weights()["layer4.0.mixer.weight"]
    for step in (None, 0):
        torch.testing.assert_close(source.load(step).state_dict()["layer4.0.mixer.weight"], weight, rtol=0, atol=0)


def test_weight_decay_spares_where_heads_look():
    recipe = ClassificationRecipe(model="timm:resnet10t")
    for kind in ("gpsa", "local"):
        model = create_model("resnet26", num_classes=3, **OPTIONS, converted={"stages": [4], "kind": kind})
        body = nn.ModuleDict({"body": model})  # which says nothing of decay itself
        spared = {
            id(parameter)
            for group in decay_groups(body, recipe)
            if not group["weight_decay"]
            for parameter in group["params"]
        }
        layer = model.layer4[0].mixer
        for name, parameter in layer.named_parameters():
            assert (id(parameter) in spared) == (name not in ("weight", "qk.weight")), name


def test_a_model_of_timm_is_built_from_its_name_and_options():
    from nearsight.classification.model import build_classifier

    recipe = ClassificationRecipe(
        model="timm:resnet10t", image_size=64, model_options={"converted": {"stages": [4], "kind": "gpsa"}}
    )
    model = build_classifier(recipe, 3)
    assert list(converted_layers(model)) == ["layer4.0.conv1", "layer4.0.conv2"]
    with pytest.raises(ValueError, match="converted holds the arguments of to_attention"):
        build_classifier(recipe.with_changes(model_options={"converted": {"images": 3}}), 3)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--to", "attention", "--stages", "9"], "no convolution is in stage 9"),
        (["--to", "attention", "--window", "5"], "'gpsa' has no option 'window'"),
        (["--to", "convolution"], "no layers that to_attention made"),
        (["--to", "convolution", "--gate", "3"], "--gate is for --to attention"),
        (["--to", "attention", "--images", "0"], "--images is at least 1"),
    ],
)
def test_mistakes_are_named_and_leave_no_run(run, tmp_path, words, error):
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match=error):
        nearsight("convert", run, *words)
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_is_in_use_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="choose another --out"):
        nearsight("convert", run, "--to", "attention", "--stages", 4, "--images", 1, "--out", run)
    nearsight("convert", run, "--to", "attention", "--stages", 4, "--images", 1, "--out", tmp_path / "once")
    with pytest.raises(ValueError, match="is converted already"):
        nearsight("convert", tmp_path / "once", "--to", "attention", "--stages", 3)


def test_nothing_is_copied_through_a_link(run, tmp_path):
    (tmp_path / "secret").write_text("a\n")
    (run / "train_images.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="link"):
        nearsight("convert", run, "--to", "attention", "--stages", 4, "--images", 1, "--out", tmp_path / "attention")
    assert not (tmp_path / "attention" / "train_images.txt").exists()


@pytest.mark.slow
def test_a_run_on_the_bundled_pictures_is_converted_and_trained_on(tmp_path, capsys):
    tiny = ["--image-size", 32, "--fraction", 0.02, "--epochs", 0.2, "--warmup-epochs", 0, "--no-report"]
    tiny += ["--model", "resnet26", "--model-options.width-multiplier", 0.25, "--device", "cpu"]
    nearsight("train", "clothing", "--run", tmp_path / "cnn", *tiny)
    attention = tmp_path / "attention"
    options = ["--stages", 3, 4, "--gate", 3, "--locality-strength", 4]
    assert nearsight("convert", tmp_path / "cnn", "--to", "attention", *options, "--out", attention) == 0
    begun = {name: value.clone() for name, value in RunFolder(attention).selected_weights().items()}
    capsys.readouterr()
    assert nearsight("eval", attention) == 0
    assert "warning" not in capsys.readouterr().err
    assert nearsight("resume", attention) == 0
    trained = RunFolder(attention).selected_weights()
    assert json.loads((attention / "done.json").read_text())["steps"] > 0
    for name in ("v_pos", "gate", "qk.weight"):
        whole = f"layer4.0.mixer.{name}"
        assert not torch.equal(trained[whole], begun[whole]), name
    assert nearsight("convert", attention, "--to", "convolution") == 0
    assert "explains" in capsys.readouterr().out
