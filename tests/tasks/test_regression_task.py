"""A task from a package outside nearsight, by the real verbs: regression of one number from a picture."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processes import assert_same_outcome, training_environment
from regression import KIND
from regression.data import open_splits
from regression.task import RegressionTask
from verbs import nearsight

from nearsight import tasks
from nearsight.analysis.pictures import fit_picture
from nearsight.classification.model import build_classifier, timm_model
from nearsight.engine.task import ProcessContext
from nearsight.explorer.inspection import inspect_picture
from nearsight.explorer.sources import open_source
from nearsight.images.preprocessing import Preprocessing, preprocessing_of
from nearsight.recipes.files import thaw
from nearsight.runs.exits import PreemptedError
from nearsight.tasks import task_of_data

SETTINGS = (
    "--image-size 8 --epochs 12 --batch 16 --warmup-epochs 1 --lr 3e-3 --lr-batch 0 --val-fraction 0.3 "
    "--value-scale 0.3 --eval-every 4 --device cpu --show quiet --model-options.width 36 --model-options.depth 2 "
    "--model-options.num-gated-blocks 1 --model-options.patch-size 4"
)
OPTIONS = SETTINGS.split()


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_KINDS", {})
        tasks.register(KIND)
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Grey pictures whose halves have a brightness of their own; the value is that of the upper half."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(5)
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "value"))
        for number in range(120):
            upper, lower = generator.integers(0, 226, 2)
            pixels = np.repeat([upper, lower], 5)[:, None, None] + generator.integers(0, 30, (10, 10, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03d}.png")
            rows.writerow((f"{number:03d}.png", pixels[:5].mean() / 255))
    return folder


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert nearsight("train", pictures, "--run", path, *OPTIONS) == 0
    return path


def test_a_run_is_whole(run):
    recipe, done = thaw(run / "config.yaml"), json.loads((run / "done.json").read_text())
    assert type(recipe) is KIND.recipe
    assert recipe.value_scale == 0.3
    assert done["selected"]["value"] > 0.4, "0 is what the mean gets"
    report = (run / "report.html").read_text()
    assert "Largest errors on val" in report
    assert "value_scale" in report


def test_a_stopped_run_goes_on_to_the_same_result(run, pictures, tmp_path, monkeypatch):
    prepare = RegressionTask.prepare

    def stopped(self, inputs, step, first):
        if int(step) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return prepare(self, inputs, step, first)

    with monkeypatch.context() as patch:
        patch.setattr(RegressionTask, "prepare", stopped)
        with pytest.raises(SystemExit) as left:
            nearsight("train", pictures, "--run", tmp_path / "run", "--no-report", *OPTIONS)
    assert left.value.code == PreemptedError.code
    assert not (tmp_path / "run" / "done.json").exists()
    assert nearsight("resume", tmp_path / "run", "--show", "quiet") == 0
    assert_same_outcome(tmp_path / "run", run)


def test_streamed_pictures_are_learned_from_alike(run, pictures, tmp_path):
    streamed = ("--resident", "off", "--workers", "0", "--no-report")
    assert nearsight("train", pictures, "--run", tmp_path / "run", *OPTIONS, *streamed) == 0
    assert_same_outcome(tmp_path / "run", run)


def test_a_run_is_measured_on_its_own_data_and_on_other(run, pictures, capsys):
    selected = json.loads((run / "done.json").read_text())["selected"]["value"]
    assert nearsight("eval", run, "--device", "cpu", "--json") == 0
    own = json.loads(capsys.readouterr().out)
    assert own["r2"] == pytest.approx(selected, abs=1e-5)
    assert own["rmse"] < 0.2
    assert nearsight("eval", run, pictures, "--device", "cpu") == 0
    assert "120 pictures with a number" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        nearsight("eval", run, "--split", "test")
    assert "the data has no test split" in capsys.readouterr().err


def test_data_that_changed_since_training_is_told(run, pictures, tmp_path, capsys):
    warning = f"warning: {pictures} has changed since the run was trained on it"
    copy = shutil.copytree(run, tmp_path / "run")
    known = json.loads((copy / "data.json").read_text())
    (copy / "data.json").write_text(json.dumps({**known, "val": "another"}))
    for folder, data, told in ((run, (), []), (copy, (), [warning]), (copy, (pictures,), [])):
        assert nearsight("eval", folder, *data, "--device", "cpu", "--json") == 0
        assert json.loads(capsys.readouterr().out)["notes"] == told


def test_its_models_are_looked_into(run, pictures, tmp_path, capsys):
    assert nearsight("inspect", run, "--out", tmp_path / "heads.json", "--images", "4") == 0
    assert f"pictures: the validation pictures of run ({pictures})" in capsys.readouterr().err
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert {row["layer"] for row in rows} == {0, 1}
    assert nearsight("inspect", run, "--figure", "5", "--out", tmp_path / "figure.png") == 0
    (curves,) = json.loads((tmp_path / "figure.json").read_text())["runs"]
    assert curves["epochs"] == [4.0, 8.0, 12.0]
    source = open_source(str(run))
    model = source.load()
    name, pixels = next(source.inspected.in_turn(source.inspected.validation_images()))
    shown = inspect_picture(model, fit_picture(name, pixels, source.image_size(model)), source.predictions)
    assert nearsight("predict", run, pictures / name, "--device", "cpu", "--json") == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])["value"]
    (said,) = shown.predictions
    assert float(said["label"]) == pytest.approx(value, abs=0.02)  # it is fitted by another filter


def test_a_model_of_timm_is_looked_into_as_it_was_trained(pictures):
    recipe = KIND.recipes[KIND.default_recipe].with_changes(data=str(pictures), model="timm:vit_tiny_patch16_224")
    model = build_classifier(recipe, 1)
    assert preprocessing_of(model) == Preprocessing()
    assert preprocessing_of(timm_model("vit_tiny_patch16_224")) != Preprocessing()


def test_a_finished_run_without_attention_has_no_figure_of_it(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if name not in ("nonlocality", "gates")} for line in lines]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    with pytest.raises(ValueError, match="is finished and logged no nonlocality"):
        nearsight("inspect", copy, "--figure", "5", "--out", tmp_path / "figure.png")
    (copy / "done.json").unlink()
    with pytest.raises(ValueError, match="wait for its first evaluation"):
        nearsight("inspect", copy, "--figure", "5", "--out", tmp_path / "figure.png")


def test_data_that_is_not_where_it_was_is_told(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"gone/labels\.csv: not in {tmp_path}; a relative path counts from"):
        open_splits(KIND.recipes[KIND.default_recipe].with_changes(data="gone"))


def test_without_data_no_task_is_asked(tmp_path, pictures, monkeypatch, capsys):
    monkeypatch.chdir(pictures)  # an empty path would be this folder, which the task recognises
    assert task_of_data("").name == "classification"
    with pytest.raises(SystemExit):
        nearsight("train", "--run", tmp_path / "run", "--recipe", "regression_small", "--device", "cpu")
    assert "no data was given: name a folder or a dataset, such as: nearsight train" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_data_that_no_task_recognises_says_which_were_asked(tmp_path, capsys):
    def refused(*words) -> str:
        with pytest.raises(SystemExit):
            nearsight("train", *words, "--run", tmp_path / "run", "--device", "cpu")
        return capsys.readouterr().err

    assert "; nor is it recognised by another task (detection, regression)" in refused(tmp_path / "nowhere")
    assert "; it is data for detection" in refused("bccd", "--task", "classification")


def test_a_run_says_the_value_of_pictures(run, pictures, tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    files = [pictures / "000.png", pictures / "001.png", tmp_path / "broken.png"]
    assert nearsight("predict", run, *files, "--device", "cpu", "--json") == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with (pictures / "labels.csv").open() as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    assert [one["value"] for one in found[:2]] == pytest.approx(values[:2], abs=0.3)
    assert found[2]["value"] is None
    assert found[2]["problem"]


def test_seeds_are_compared_as_one_setting(run, pictures, tmp_path, capsys):
    assert nearsight("train", pictures, "--run", tmp_path / "other", "--seed", "1", "--no-report", *OPTIONS) == 0
    assert nearsight("compare", run, tmp_path / "other", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quantity"] == "r2"
    (setting,) = found["settings"]
    assert setting["seeds"] == [0, 1]
    assert setting["values"][0] != setting["values"][1]


def test_a_fraction_keeps_some_of_the_training_pictures(pictures):
    recipe = KIND.recipes[KIND.default_recipe].with_changes(data=str(pictures), val_fraction=0.3)
    whole, half, tenth = (open_splits(recipe.with_changes(fraction=fraction)) for fraction in (1.0, 0.5, 0.1))
    assert set(tenth.train.names) < set(half.train.names) < set(whole.train.names)
    assert len(half.train) == round(len(whole.train) / 2)
    assert half.epoch_size == len(whole.train)
    assert half.val.names == whole.val.names


def test_every_process_evaluates_its_share(pictures):
    task = KIND.open_task(KIND.recipes[KIND.default_recipe].with_changes(data=str(pictures)), fit_batch=True)
    count = len(task.data.split("train"))
    shares = []
    for rank in range(3):
        order, parts = task.data.eval_parts("train", 7, ProcessContext(torch.device("cpu"), rank, 3))
        assert all(part.stop - part.start <= 7 for part in parts)
        shares += [index for part in parts for index in order.indices[part].tolist()]
    assert sorted(shares) == list(range(count))


def test_an_unreadable_picture_is_replaced_and_told(pictures, tmp_path):
    task = _opened(pictures, tmp_path, damaged="003.png", resident="off")
    names = {name for split in task.data.splits.named.values() for name in split.names}
    assert "003.png" in names
    for split in ("train", "val"):
        shown = [index for batch in task.data.eval_batches(split, _alone()) for index in batch.indices.tolist()]
        assert len(shown) == len(task.data.split(split))
    (problem,) = task.problems()
    assert "003.png" in problem


def test_its_options_are_its_own(run, pictures, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(ValueError, match="--mixup is for classification; regression does not read it"):
        nearsight("train", pictures, "--mixup", "0.5")
    with pytest.raises(ValueError, match="--value-scale is for regression; classification does not read it"):
        nearsight("train", "clothing", "--value-scale", "2")
    with pytest.raises(ValueError, match="must leave out 'img_size': --image-size sets it"):
        nearsight("train", pictures, "--model-options.img-size", "8")
    for verb in ("eval", "predict", "train"):
        nearsight(verb, "--help")
    told = capsys.readouterr().out
    assert "--task detection --help or nearsight train --task regression --help shows others" in told
    told = " ".join(told.replace("│", " ").split())
    assert "For regression: a folder of pictures with a labels.csv of name,value." in told
    assert "by default, where there is one, test (classification), val (detection), val (regression)" in told
    nearsight("recipes")
    assert "regression_small (regression)" in " ".join(capsys.readouterr().out.split())


def test_a_program_that_registers_it_has_all_verbs(pictures, tmp_path):
    words = [sys.executable, "-m", "regression", "train", pictures, "--run", "run", *OPTIONS]
    environment = training_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    done = subprocess.run([*map(str, words)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "done.json").exists()

    def said(*words) -> str:
        program = [sys.executable, "-m", "regression", *words]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return " ".join((done.stdout + done.stderr).split())

    assert "such as: python -m regression inspect convit_tiny" in said("inspect")
    assert "Usage: python -m regression train DATA [OPTIONS]" in said("train", "--help")
    assert "Usage: python -m regression COMMAND" in said("--help")


def test_a_run_of_a_task_that_is_not_registered_says_so(run, monkeypatch):
    monkeypatch.setattr(tasks, "_KINDS", {})
    with pytest.raises(ValueError, match=r"config\.yaml: there is no task 'regression'; .* registers it"):
        nearsight("resume", run)


def _alone() -> ProcessContext:
    return ProcessContext(torch.device("cpu"))


def _opened(pictures: Path, tmp_path: Path, *, damaged: str, **changes) -> RegressionTask:
    folder = shutil.copytree(pictures, tmp_path / "damaged")
    (folder / damaged).write_bytes(b"no picture")
    recipe = KIND.recipes[KIND.default_recipe].with_changes(data=str(folder), image_size=32, **changes)
    return KIND.open_task(recipe, fit_batch=True)
