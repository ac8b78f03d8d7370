"""Runs on real image files: workers change nothing, broken files are named, nothing needs the network."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pictures import image_recipe, make_folder
from processes import assert_same_outcome, outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def streamed(zygote, folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("streamed") / "run"
    ended = zygote.run(run, task="images", recipe=image_recipe(folder))
    assert ended.code == 0, ended.text
    return run


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(zygote, folder, streamed, tmp_path, workers):
    ended = zygote.run(tmp_path / "run", task="images", recipe=image_recipe(folder, workers=workers))
    assert ended.code == 0, ended.text
    assert_same_outcome(tmp_path / "run", streamed)


def test_logged_evaluations_tell_the_models_inner_state(streamed):
    evaluations = [line for line in outcome(streamed)[1] if line["kind"] == "eval"]
    assert [line["epoch"] for line in evaluations] == [1.0, 2.0, 3.0]
    for line in evaluations:
        assert 0 <= line["val_top1"] <= 100
        assert len(line["nonlocality"]) == 2
        assert [len(heads) for heads in line["gates"]] == [9]
    assert evaluations[0]["gates"][0][0] == pytest.approx(0.731, abs=0.05)
    assert (streamed / "classes.txt").read_text() == "amber\nblue\ncoral\n"


def test_killed_with_workers_resumes_in_the_middle_of_an_epoch(zygote, folder, streamed, tmp_path):
    run = tmp_path / "run"
    recipe = image_recipe(folder, workers=2)
    child = zygote.start(run, task="images", recipe=recipe, kill_at=["after rename", 2])
    assert child.end().code == -signal.SIGKILL
    ended = zygote.run(run, task="images", recipe=image_recipe(folder))  # the lock is free, whatever orphans do
    assert ended.code == 0, ended.text
    assert "resumed after step 6" in ended.text
    assert_same_outcome(run, streamed)


def test_a_balanced_run_that_was_killed_resumes_to_the_same_result(zygote, tmp_path):
    data = make_folder(tmp_path / "data")
    for file in sorted((data / "train" / "coral").iterdir())[2:]:
        file.unlink()
    recipe = image_recipe(data, sampling="balanced")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert zygote.run(whole, task="images", recipe=recipe).code == 0
    child = zygote.start(cut, task="images", recipe={**recipe, "workers": 2}, kill_at=["after rename", 2])
    assert child.end().code == -signal.SIGKILL
    ended = zygote.run(cut, task="images", recipe=recipe)
    assert "resumed after step" in ended.text
    assert_same_outcome(cut, whole)


def test_killed_worker_is_explained(zygote, tmp_path):
    run = tmp_path / "run"
    # One long epoch, so that the worker is in the middle of it.
    data = make_folder(tmp_path / "data", per_class=200)
    settings = {"epochs": 1.0, "warmup_epochs": 0.1}
    child = zygote.start(run, task="images", recipe=image_recipe(data, workers=1, **settings))
    child.wait_for("step 10\n")
    workers: list[int] = []
    while not workers:
        workers = _children(child.pid)
    os.kill(workers[0], signal.SIGKILL)
    ended = child.end()
    assert ended.code == 1
    assert "data-loading process died" in ended.text
    assert "--workers" in ended.text
    assert "Traceback" not in ended.text
    for path in (run, tmp_path / "undisturbed"):
        ended = zygote.run(path, task="images", recipe=image_recipe(data, workers=0, **settings))
        assert ended.code == 0, ended.text
    assert_same_outcome(run, tmp_path / "undisturbed")


def test_broken_images_are_replaced_and_named(zygote, tmp_path):
    data = make_folder(tmp_path / "data")
    broken = [data / "train" / "amber" / "003.png", data / "train" / "coral" / "007.png"]
    broken[0].write_bytes(broken[0].read_bytes()[:60])
    broken[1].write_bytes(b"")
    runs = [tmp_path / "a", tmp_path / "b"]
    for run, workers in zip(runs, (0, 2), strict=True):
        ended = zygote.run(run, task="images", recipe=image_recipe(data, workers=workers))
        assert ended.code == 0, ended.text
        problems = json.loads((run / "done.json").read_text())["problems"]
        assert len(problems) == 2
        assert all(any(path.name in line for line in problems) for path in broken)
    assert_same_outcome(runs[0], runs[1])


def test_too_many_broken_images_stop_the_run(zygote, tmp_path):
    data = make_folder(tmp_path / "data")
    for path in sorted((data / "train").rglob("*.png"))[::3]:
        path.write_bytes(b"not an image")
    ended = zygote.run(tmp_path / "run", task="images", recipe=image_recipe(data))
    assert ended.code in (1, 2)
    assert "images unreadable" in ended.text
    assert "Traceback" not in ended.text


def test_class_without_a_readable_image_is_refused(zygote, tmp_path):
    data = make_folder(tmp_path / "data")
    for path in (data / "train" / "blue").iterdir():
        path.write_bytes(b"")
    ended = zygote.run(tmp_path / "run", task="images", recipe=image_recipe(data))
    assert ended.code == 2
    assert "blue" in ended.text
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("case", ["empty class", "empty folder", "no folder"])
def test_data_that_cannot_be_learned_from_is_refused(zygote, tmp_path, case):
    data = tmp_path / "data"
    if case == "empty class":
        make_folder(data)
        for split in ("train", "val"):
            (data / split / "dove").mkdir()
    elif case == "empty folder":
        data.mkdir()
    ended = zygote.run(tmp_path / "run", task="images", recipe=image_recipe(data))
    assert ended.code == 2, ended.text
    assert "dove" in ended.text if case == "empty class" else "data" in ended.text


def test_training_opens_no_connection(zygote, folder, tmp_path):
    ended = zygote.run(tmp_path / "run", task="images", recipe=image_recipe(folder), no_network=True)
    assert ended.code == 0, ended.text
