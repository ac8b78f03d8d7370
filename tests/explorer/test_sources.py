"""What a person types is recognised, and what is wrong with it is said."""

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
from explorer_helpers import make_run
from safetensors.torch import save_file

from nearsight import tasks
from nearsight.analysis.pictures import fit_picture
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.explorer.inspection import inspect_picture
from nearsight.explorer.sources import ModelSource, RunSource, open_source, pictures_of, untrained
from nearsight.models import create_model
from nearsight.recipes.files import freeze, named_recipe


def test_a_run_has_its_beginning_and_its_snapshots(tmp_path):
    source = open_source(str(make_run(tmp_path / "nano-1")))
    assert isinstance(source, RunSource)
    assert source.name == "nano-1"
    assert source.inspected.classes == ["hat", "shoes", "<b>skirt</b>"]
    assert [(s.step, s.label) for s in source.snapshots] == [
        (0, "before training"), (4, "step 4 (selected)"), (8, "step 8"),
    ]  # fmt: skip
    assert source.load().head.bias.tolist() == [0.0, 0.0, 4.0]
    assert source.load(8).head.bias.tolist() == [0.0, 0.0, 8.0]
    assert source.load(0).head.bias.tolist() == [0.0] * 3
    assert not source.load(8).training
    torch.testing.assert_close(untrained(source).state_dict(), source.load(0).state_dict())
    with pytest.raises(ValueError, match="step-00000005"):
        source.load(5)


def test_models_are_shown_pictures_as_they_were_trained_on(tmp_path):
    """timm's weights by what timm says of them, a run's own by what training here shows."""
    name = "timm:vit_tiny_patch16_224"
    picture = fit_picture("white", np.full((9, 9, 3), 255, np.uint8), (8, 8))
    assert picture.tensor(open_source(name).load()).unique().tolist() == [1.0]
    run = tmp_path / "vit-1"
    run.mkdir()
    (run / "config.yaml").write_text(freeze(ClassificationRecipe(model=name, data="clothing")))
    (run / "classes.txt").write_text("hat\nshoes\n")
    trained = open_source(str(run)).load(0)
    torch.testing.assert_close(picture.tensor(trained), picture.tensor())


def test_a_beginning_is_the_run_s_own(tmp_path):
    from nearsight.engine.distributed import World
    from nearsight.engine.state import TrainState

    source = open_source(str(make_run(tmp_path / "nano-1")))

    class Task:
        def build_model(self):
            return create_model("convit_nano_32", num_classes=3, drop_path_rate=0.1)

        def training_module(self, model):
            return model

    state = TrainState(Task(), source.inspected.recipe, World(), torch.device("cpu"))
    torch.testing.assert_close(source.load(0).state_dict(), state.model.state_dict(), atol=0, rtol=0)


def test_names_of_models():
    source = open_source("deit_nano_64")
    assert isinstance(source, ModelSource)
    torch.testing.assert_close(source.load().state_dict(), source.load().state_dict(), atol=0, rtol=0)
    assert open_source("timm:vit_tiny_patch16_224").load().blocks[0].attn.num_heads == 3
    with pytest.raises(ValueError, match="did you mean"):
        open_source("convit_tinny")
    with pytest.raises(ValueError, match="timm cannot build"):
        open_source("timm:no_such_model").load()
    with pytest.raises(ValueError, match="cannot look inside a ResNet; known are"):
        open_source("timm:resnet18").load()
    with pytest.raises(ValueError, match="--weights timm:convit_tiny"):
        open_source("convit_tiny", download=True)


def test_given_weights_under_either_naming(tmp_path):
    theirs = timm.create_model("convit_tiny", pretrained=False)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    model = open_source("convit_tiny", weights=str(tmp_path / "theirs.safetensors")).load()
    torch.testing.assert_close(model.blocks[3].attn.qk.weight, theirs.blocks[3].attn.qk.weight)
    save_file(model.state_dict(), tmp_path / "ours.safetensors")
    again = open_source("convit_tiny", weights=str(tmp_path / "ours.safetensors")).load()
    torch.testing.assert_close(again.state_dict(), model.state_dict())
    with pytest.raises(ValueError, match="does not fit the model"):
        open_source("convit_small", weights=str(tmp_path / "ours.safetensors")).load()
    with pytest.raises(ValueError, match="no weights at"):
        open_source("convit_small", weights=str(tmp_path / "absent.safetensors")).load()


def test_weights_with_other_classes_and_preprocessing(tmp_path):
    """They are looked at with their own head, and shown pictures as they were trained."""
    for name, source in (("convit_nano_32", ""), ("timm:vit_tiny_patch16_224", "x")):
        model = create_model(name, num_classes=3) if not source else timm.create_model(name[5:], num_classes=3)
        save_file(model.state_dict(), tmp_path / "w.safetensors")
        loaded = open_source(name, weights=str(tmp_path / "w.safetensors")).load()
        assert loaded.head.out_features == 3
    (tmp_path / "hub").mkdir()
    shown = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": shown}
    (tmp_path / "hub" / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "hub" / "model.safetensors")
    source = open_source(str(tmp_path / "hub"))
    white = fit_picture("white", np.full((9, 9, 3), 255, np.uint8), (8, 8)).tensor(source.load())
    torch.testing.assert_close(white[0, :, 0, 0], torch.tensor([1.8, 1.6, 1.4]))


def test_a_run_that_started_from_weights_has_no_beginning_of_its_own(tmp_path):
    run = make_run(tmp_path / "nano-1")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("weights: ''", "weights: elsewhere.safetensors"))
    source = open_source(str(run))
    assert source.snapshots[0].step != 0
    assert not source.load().training
    with pytest.raises(ValueError, match="started from the weights elsewhere"):
        untrained(source)


def test_detection_runs(detection_run):
    source = open_source(str(detection_run))
    assert source.num_classes == 3
    assert source.selected_step == 4
    model = source.load()
    assert model.heads.classes.predictor.bias.unique().tolist() == [0.0]
    assert source.load(0).heads.classes.predictor.bias.max() < -4
    assert source.image_size(model) == (96, 128)  # 90×128 up to what the stride of 32 divides
    name, pixels = pictures_of([open_source("deit_nano_32"), source]).take(1)[0]
    assert name.endswith(".jpg") or name.endswith(".png")
    inspection = inspect_picture(model, fit_picture(name, pixels, (96, 128)), source.predictions)
    assert [layer.name for layer in inspection.layers] == [f"stage {stage}, block 1" for stage in (1, 2, 3, 4)]
    found = inspection.describe()["predictions"]
    assert {one["label"] for one in found} <= {"RBC", "WBC", "Platelets"}
    assert all(0 <= one["box"][0] < one["box"][2] <= 1 and 0 <= one["box"][1] < one["box"][3] <= 1 for one in found)
    assert found[0]["probability"] == pytest.approx(0.5, abs=0.2)


def test_a_task_whose_models_cannot_be_looked_into(run_folder, monkeypatch):
    kind = tasks.task_kind("classification")
    monkeypatch.setattr("nearsight.classification.KIND", dataclasses.replace(kind, inspect=None))
    with pytest.raises(ValueError, match="a run of classification, whose models cannot be looked into"):
        open_source(str(run_folder))


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(ValueError, match="is neither a run"):
        open_source(str(tmp_path))
    run = make_run(tmp_path / "nano-1")
    with pytest.raises(ValueError, match="has its own weights"):
        open_source(str(run), download=True)
    detector = tmp_path / "cells"
    detector.mkdir()
    (detector / "config.yaml").write_text(freeze(named_recipe("retinanet_small")))
    with pytest.raises(ValueError, match=r"cells/categories\.json does not list the run's classes"):
        open_source(str(detector))
    (run / "classes.txt").unlink()
    with pytest.raises(ValueError, match=r"no classes\.txt"):
        open_source(str(run))
