"""A run that started from weights needs them no more, nor a network, nor its data: it is moved, and predicts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from nearsight.cli.verbs import app
from nearsight.engine.training import train
from nearsight.explorer.sources import open_source
from nearsight.images.preprocessing import Preprocessing, preprocessing_of
from nearsight.recipes.files import named_recipe
from nearsight.runs.folder import RunFolder

SHOWN = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear", "input_size": [3, 32, 32]}


def nearsight(*words) -> int:
    return app([str(word) for word in words], result_action="return_value")


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A run that started from a hub folder of timm's resnet18, moved away from all that it was made of."""
    here = tmp_path_factory.mktemp("here")
    rng = np.random.default_rng(0)
    for kind, level in (("cat", 60), ("dog", 160), ("elk", 230)):
        (here / "data" / kind).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(level - 50, level, (40, 36, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(here / "data" / kind / f"{number}.png")
    shutil.copy(here / "data" / "cat" / "0.png", here / "cat.png")
    torch.manual_seed(0)
    hub = here / "hub"
    hub.mkdir()
    save_file(timm.create_model("resnet18", num_classes=9).state_dict(), hub / "model.safetensors")
    (hub / "config.json").write_text(
        json.dumps({"architecture": "resnet18", "num_classes": 9, "pretrained_cfg": SHOWN})
    )
    recipe = named_recipe("finetune").with_changes(
        data=str(here / "data"), weights=str(hub), epochs=3.0, batch=6, val_fraction=0.25, device="cpu", resident="off",
        workers=0, download=True,
    )  # fmt: skip
    notes = []
    train(recipe, RunFolder(here / "run"), callbacks=lambda trainer: [Notes(notes)])
    away = tmp_path_factory.mktemp("away")
    shutil.copytree(here / "run", away / "run")
    shutil.copytree(here / "run", away / "other")
    shutil.copy(here / "cat.png", away / "cat.png")
    data = shutil.copytree(here / "data", away / "data")
    shutil.rmtree(here)
    return away, data, notes


class Notes:
    """A callback that keeps what a person is told."""

    def __init__(self, kept: list[str]) -> None:
        self.kept = kept

    def note(self, text: str) -> None:
        self.kept.append(text)

    def record(self, record: dict) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("it connects")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)


def test_the_recipe_has_all_that_the_weights_said(moved):
    away, _, notes = moved
    recipe = RunFolder(away / "run").recipe()
    assert (recipe.model, recipe.image_size) == ("timm:resnet18", 32)
    assert recipe.preprocessing == Preprocessing((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bilinear")
    assert not recipe.download  # whoever opens a run says anew whether it may fetch
    assert any("120 tensors as they are" in note for note in notes), notes
    assert any("weights new: fc.bias, fc.weight" in note for note in notes)


def test_it_predicts_and_is_evaluated_inspected_and_compared(moved, capsys):
    away, data, _ = moved
    assert nearsight("predict", away / "run", away / "cat.png", "--device", "cpu") == 0
    assert "%" in capsys.readouterr().out
    assert nearsight("eval", away / "run", data, "--device", "cpu") == 0
    assert nearsight("compare", away / "run", away / "other") == 0
    assert preprocessing_of(open_source(str(away / "run")).inspected.fresh_model()).mean == (0.5, 0.4, 0.3)


def test_predictions_are_those_of_training_preprocessing(moved):
    from nearsight.classification.use import Classifier

    away, _, _ = moved
    classifier = Classifier(away / "run", device="cpu")
    pixels = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    seen = classifier._normalise(pixels)[0, :, 0, 0]
    torch.testing.assert_close(seen, torch.tensor([0.5 / 0.2, 0.6 / 0.3, 0.7 / 0.4]))


def test_it_is_made_longer_without_what_it_started_from(moved, tmp_path):
    away, data, _ = moved
    run = RunFolder(shutil.copytree(away / "run", tmp_path / "run"))
    recipe = run.recipe().with_changes(data=str(data), epochs=4.0)
    assert train(recipe, run, override=True)["steps"] == 8


def test_an_older_run_whose_options_fetched_weights(moved, tmp_path, capsys):
    """Such options were part of the network's; a run has its own weights by now."""
    away, _, _ = moved
    run = shutil.copytree(away / "run", tmp_path / "run")
    config = (run / "config.yaml").read_text()
    assert "model_options: {}" in config
    (run / "config.yaml").write_text(config.replace("model_options: {}", "model_options: {pretrained: true}"))
    assert nearsight("predict", run, away / "cat.png", "--device", "cpu") == 0


def test_another_run_starts_from_this_one(moved, tmp_path):
    """Its network, its head for the same classes, and its preprocessing."""
    away, data, _ = moved
    recipe = named_recipe("finetune").with_changes(
        data=str(data), weights=str(away / "run"), epochs=2.0, batch=6, val_fraction=0.25, device="cpu", report=False
    )
    notes: list[str] = []
    train(recipe, RunFolder(tmp_path / "next"), callbacks=lambda trainer: [Notes(notes)])
    assert any("122 tensors as they are" in note for note in notes), notes
    assert RunFolder(tmp_path / "next").recipe().preprocessing.interpolation == "bilinear"


def test_a_name_that_is_not_here_says_how(moved, tmp_path, capsys):
    _, data, _ = moved
    words = ["train", data, "--recipe", "finetune", "--weights", "timm:convit_tiny", "--run", tmp_path / "run"]
    with pytest.raises(SystemExit):
        nearsight(*words)
    assert "timm:convit_tiny are not on this machine; --download" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
