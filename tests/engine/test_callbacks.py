"""Progress and trackers: told everything, able to stop nothing."""

from __future__ import annotations

import io
import json
import threading
import time
import warnings

import pytest

from nearsight.engine import trackers
from nearsight.engine.callbacks import (
    CallbackList,
    JsonProgress,
    PlainProgress,
    QuietProgress,
    describe_evaluation,
    describe_training,
)
from nearsight.recipes.recipe import Recipe

TRAINING = {
    "kind": "train",
    "step": 30,
    "epoch": 1.5,
    "loss": 2.25,
    "grad_norm": 1.0,
    "lr": 5e-4,
    "skipped": 0,
    "images_per_second": 812.3,
    "data_wait": 0.031,
}
EVALUATION = {"kind": "eval", "step": 30, "epoch": 1.5, "val_top1": 43.21, "gates": [[0.7, 0.8], [0.6, 0.5]]}


class Broken:
    def record(self, record):
        raise OSError("the server is gone")

    def note(self, text):
        return

    def close(self):
        return


def test_a_broken_callback_is_dropped_with_one_warning():
    stream = io.StringIO()
    callbacks = CallbackList([Broken(), JsonProgress(stream)])
    with pytest.warns(UserWarning, match="Broken failed and is no longer called.*the server is gone"):
        callbacks.record(TRAINING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callbacks.record(EVALUATION)
    assert [json.loads(line)["kind"] for line in stream.getvalue().splitlines()] == ["train", "eval"]


def test_plain_lines():
    stream = io.StringIO()
    progress = PlainProgress(100, stream)
    progress.record(TRAINING)
    progress.record({**TRAINING, "step": 40})  # too soon for another line
    progress.record(EVALUATION)
    progress.note("a file\nname\x1b[31m")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "epoch 1.5  step 30/100  loss 2.2500  lr 5.00e-04  812 images/s  data wait 3 %"
    assert lines[1] == "epoch 1.5  val top-1 43.2 %"
    assert lines[2] == r"a file\nname\x1b[31m"
    assert len(lines) == 3
    both = {**EVALUATION, "ema_val_top1": 44.0, "val_loss": 1.5}
    assert describe_evaluation(both).endswith("val top-1 43.2 %  val loss 1.500  averaged val top-1 44.0 %")
    detection = {"kind": "eval", "epoch": 2.0, **dict.fromkeys(("val_mAP", "val_mAP50", "val_mAP75", "val_AR1"), 0.25)}
    assert describe_evaluation(detection) == "epoch 2.0  val mAP 0.250  val mAP50 0.250  val mAP75 0.250"
    assert "2 skipped" in describe_training({**TRAINING, "skipped": 2}, 100, 3725)
    assert describe_training(TRAINING, 100, 3725).endswith("ETA 1:02:05")
    assert "loss nan" in describe_training({**TRAINING, "loss": "nan"}, 100, None)


def test_json_lines_have_no_number_that_json_lacks():
    stream = io.StringIO()
    JsonProgress(stream).record({**TRAINING, "loss": float("nan"), "gates": [[float("-inf")]]})
    record = json.loads(stream.getvalue(), parse_constant=pytest.fail)
    assert (record["loss"], record["gates"]) == ("nan", [["-inf"]])


def test_quiet_says_warnings_only():
    stream = io.StringIO()
    quiet = QuietProgress(stream)
    quiet.record(TRAINING)
    quiet.note("resumed")
    quiet.note("warning: disk")
    assert stream.getvalue() == "warning: disk\n"


def test_numbers_get_flat_names():
    assert trackers.flat_numbers(EVALUATION) == {
        "eval/epoch": 1.5,
        "eval/val_top1": 43.21,
        "eval/gates/0/0": 0.7,
        "eval/gates/0/1": 0.8,
        "eval/gates/1/0": 0.6,
        "eval/gates/1/1": 0.5,
    }


def test_tensorboard_files_are_written(tmp_path):
    (tracker,) = trackers.make_trackers(Recipe(tensorboard=True), tmp_path)
    tracker.record(TRAINING)
    tracker.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/images_per_second" in file.read_bytes()


def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in (range(1, 8), range(5, 10)):  # killed after 7, resumed after 4
        (tracker,) = trackers.make_trackers(Recipe(tensorboard=True), tmp_path)
        for step in steps:
            tracker.record({**TRAINING, "step": step})
        tracker.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 10))


def test_wandb_files_are_written_offline_and_resumed_under_one_id(tmp_path, monkeypatch, recwarn):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for variable in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    runs = [tmp_path / "a" / "run", tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for number, folder in enumerate(runs):
        folder.mkdir(parents=True, exist_ok=True)
        (tracker,) = trackers.make_trackers(Recipe(wandb=True, seed=17), folder)
        tracker.record({**EVALUATION, "step": 30 + number})
        tracker.close()
    assert not [warning for warning in recwarn if "tracker failed" in str(warning.message)]
    twice, once = (list(folder.glob("wandb/offline-run-*/run-*.wandb")) for folder in (runs[0], runs[2]))
    assert b"eval/val_top1" in twice[0].read_bytes()
    assert len({file.name for file in twice}) == 1
    assert twice[0].name != once[0].name


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_missing_package_is_named_before_any_work(package, monkeypatch):
    trackers.check_trackers(Recipe())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"--{package} needs a package: pip install {package}"):
        trackers.check_trackers(Recipe(**{package: True}))


def test_a_hanging_tracker_does_not_hold_the_run(monkeypatch):
    release = threading.Event()

    class Hanging:
        def log(self, values, step):
            release.wait(30)

        def close(self):
            return

    monkeypatch.setattr(trackers, "_SECONDS_AT_CLOSE", 0.2)
    tracker = trackers.BackgroundTracker(Hanging)
    began = time.monotonic()
    for _ in range(100):
        tracker.record(TRAINING)
    tracker.close()
    assert time.monotonic() - began < 5
    release.set()
