"""Trouble that is not a kill: changed settings, full disks, NaN, memory, two runs in one folder."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest
from processes import assert_same_outcome, outcome


def _losses(run):
    return [line["loss"] for line in outcome(run)[1] if line["kind"] == "train"]


def _started(zygote, run):
    assert zygote.run(run, kill_at=["after rename", 3]).code == -signal.SIGKILL


def _snapshot(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_options": {"width": 12}}, "model_options was {} and is now {'width': 12}"),
        ({"data": "other"}, "the data changed since the run was started on toy: other has other images"),
        ({"data": "other", "fraction": 0.5}, "another experiment: fraction was 1.0 and is now 0.5"),
        ({"batch": 32}, "batch was 16 and is now 32"),
        ({"lr": 0.02}, "lr was 0.01 and is now 0.02. Add --override"),
    ],
)
def test_resuming_another_experiment_is_refused(zygote, tmp_path, changes, words):
    run = tmp_path / "run"
    _started(zygote, run)
    before = _snapshot(run)
    ended = zygote.run(run, recipe=changes)
    assert ended.code == 2
    assert words in ended.text
    assert _snapshot(run) == before


def test_override_lets_the_rate_change(zygote, reference, tmp_path):
    run = tmp_path / "run"
    _started(zygote, run)
    assert zygote.run(run, recipe={"lr": 0.02}, override=True).code == 0
    assert outcome(run)[0] != outcome(reference)[0]


def test_speed_after_a_resume_counts_this_process_alone(zygote, tmp_path):
    """Nine of a window's ten steps were made before; they are in its loss, not in its images per second."""
    run, slow = tmp_path / "run", 0.02
    assert zygote.run(run, recipe={"log_every": 10}, slow=slow, stop_at=38).code == 75
    assert zygote.run(run, recipe={"log_every": 10}, slow=slow).code == 0
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speeds = {line["step"]: line["images_per_second"] for line in log if line["kind"] == "train"}
    assert speeds[40] < 16 / slow


def test_an_average_may_begin_when_a_run_is_resumed(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, recipe={"ema": 0.0}, kill_at=["after rename", 3]).code == -signal.SIGKILL
    ended = zygote.run(run, recipe={"ema": 0.9}, override=True)
    assert ended.code == 0, ended.text


def test_a_finished_run_keeps_its_record(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run).code == 0
    before = _snapshot(run)
    for changes, words in (
        ({"lr": 0.02}, "this run is finished, and lr was 0.01 and is now 0.02"),
        ({"epochs": 10.0}, "use at least --epochs 33.34"),
    ):
        ended = zygote.run(run, recipe=changes, override=True)
        assert ended.code == 2
        assert words in ended.text
    assert _snapshot(run) == before


def test_a_report_that_is_missing_is_written(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, recipe={"report": True}).code == 0
    (run / "report.html").unlink()
    assert zygote.run(run, recipe={"report": True}).code == 0
    assert (run / "report.html").is_file()


def test_machine_settings_may_change(zygote, reference, tmp_path):
    run = tmp_path / "run"
    _started(zygote, run)
    assert zygote.run(run, recipe={"workers": 0, "save_every": 7, "keep": 3}).code == 0
    assert_same_outcome(run, reference)


def test_foreign_folder_is_refused(zygote, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "thesis.tex").write_text("precious")
    ended = zygote.run(run)
    assert ended.code == 2
    assert "thesis.tex" in ended.text
    assert not (run / "config.yaml").exists()


def test_full_disk_in_the_middle_loses_nothing(zygote, reference, tmp_path):
    run = tmp_path / "run"
    ended = zygote.run(run, disk_full=[40, 120])
    assert ended.code == 0
    assert ended.text.count("Training goes on") >= 4
    assert_same_outcome(run, reference)


@pytest.mark.parametrize(("failing", "times", "selected"), [(12, 9, 6), (24, 1, 24)])
def test_the_best_that_could_not_be_saved_is_not_called_the_best(tmp_path, monkeypatch, failing, times, selected):
    from toy import ToyTask, toy_recipe

    from nearsight.engine.training import train
    from nearsight.runs import checkpoint
    from nearsight.runs.exits import DiskError
    from nearsight.runs.folder import RunFolder

    class Peak(ToyTask):
        """Best at an evaluation whose checkpoint finds the disk full."""

        def evaluate(self, model, split, context):
            self.count = getattr(self, "count", 0) + 1
            yield "score", 1.0 if 6 * self.count == failing else 0.1 * (self.count == 1)

    save = checkpoint.CheckpointStore.save

    failures = []

    def full(self, step, *rest):
        if step == failing and len(failures) < times:
            failures.append(step)
            raise DiskError("No space left")
        save(self, step, *rest)

    monkeypatch.setattr(checkpoint.CheckpointStore, "save", full)
    recipe = toy_recipe(epochs=4.0, eval_every=1.0, save_every=0, ema=0.0)
    summary = train(recipe, RunFolder(tmp_path / "run"), open_task=Peak)
    assert summary["selected"]["step"] == selected
    assert json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())["step"] == selected


def test_killed_before_the_first_step_a_run_starts_anew(zygote, reference, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, die_when_restored=True).code == -signal.SIGKILL
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)


def test_full_disk_at_the_end(zygote, reference, tmp_path):
    run = tmp_path / "run"
    ended = zygote.run(run, disk_full=[40, 10_000])
    assert ended.code == 74
    assert "No space left" in ended.text
    assert json.loads((run / "checkpoints" / "last.json").read_text())["step"] == 30
    assert not list(run.rglob("*.tmp-*"))
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)


def test_file_size_limit_of_the_system(zygote, reference, tmp_path):
    """A real refusal by the operating system, which also hits the log itself."""
    run = tmp_path / "run"
    ended = zygote.run(run, largest_file=12_000)
    assert ended.code == 74, ended.text
    assert "File too large" in ended.text
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)


def test_disk_too_small_at_the_start(zygote, tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    from nearsight.runs.checkpoint import require_free_space
    from nearsight.runs.exits import DiskError

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(DiskError, match=r"needs 1,234 bytes and .* has 10 free"):
        require_free_space(tmp_path, 1234)


def test_run_path_under_a_file(zygote, tmp_path):
    (tmp_path / "file").write_text("")
    ended = zygote.run(tmp_path / "file" / "run", output=str(tmp_path / "out"))
    assert ended.code == 74


@pytest.mark.parametrize("fault", [{"nan_loss": [50]}, {"inf_gradient": [50]}])
def test_one_bad_step_is_skipped(zygote, reference, tmp_path, fault):
    run = tmp_path / "run"
    ended = zygote.run(run, **fault)
    assert ended.code == 0, ended.text
    assert "step 50 skipped" in ended.text
    record = json.loads((run / "skipped-step-00000050.json").read_text())
    assert len(record["samples"]) == 16
    assert all(re.fullmatch(r"point \d+", name) for name in record["samples"])
    log = [line for line in outcome(run)[1] if line["kind"] == "train"]
    assert log[-1]["skipped"] == 1
    assert str(log[50]["loss"] if "nan_loss" in fault else log[50]["grad_norm"]) in ("nan", "inf")
    assert _losses(run)[:50] == _losses(reference)[:50]
    assert _losses(run)[51] != _losses(reference)[51]  # the update of step 50 did not happen


def test_persistent_nan_stops_the_run(zygote, tmp_path):
    run = tmp_path / "run"
    ended = zygote.run(run, nan_from=70)
    assert ended.code == 65
    assert "3 steps in a row" in ended.text
    assert "step 72, run once more: 4 of 4 gradients are not finite; that of 3.bias is nearest the loss" in ended.text
    assert json.loads((run / "checkpoints" / "last.json").read_text())["step"] == 60
    assert (run / "skipped-step-00000072.json").exists()
    assert not (run / "skipped-step-00000073.json").exists()


def test_out_of_memory_halves_the_micro_batch(zygote, reference, tmp_path):
    run = tmp_path / "run"
    ended = zygote.run(run, memory_limit=4, recipe={"batch_auto": True, "drop_path": 0.0})
    assert ended.code == 0, ended.text
    assert "going on with 8" in ended.text
    assert "going on with 4" in ended.text
    whole = tmp_path / "whole"
    assert zygote.run(whole, recipe={"drop_path": 0.0}).code == 0
    assert _losses(run) == pytest.approx(_losses(whole), abs=1e-5)


def test_out_of_memory_without_permission_explains(zygote, tmp_path):
    ended = zygote.run(tmp_path / "run", memory_limit=4)
    assert ended.code == 1
    assert "--micro-batch 8" in ended.text


def test_out_of_memory_at_one_image(zygote, tmp_path):
    ended = zygote.run(tmp_path / "run", memory_limit=0, recipe={"batch_auto": True})
    assert ended.code == 1
    assert "even at a micro-batch of 1" in ended.text
    assert "Traceback" not in ended.text


def test_two_runs_in_one_folder(zygote, reference, tmp_path):
    run = tmp_path / "run"
    first = zygote.start(run, slow=0.01)
    first.wait_for("step 5\n")
    second = zygote.run(run, output=str(tmp_path / "second.out"))
    assert second.code == 73
    assert f"process {first.pid}" in (tmp_path / "second.out").read_text()
    first.kill()
    assert first.end().code == -signal.SIGKILL
    assert zygote.run(run).code == 0  # the lock is free at once
    assert_same_outcome(run, reference)


def test_finished_run_is_not_trained_again(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run).code == 0
    before = _snapshot(run)
    began = time.monotonic()
    ended = zygote.run(run)
    assert ended.code == 0
    assert "finished" in ended.text
    assert time.monotonic() - began < 20
    changed = {path.name for path, content in _snapshot(run).items() if before.get(path) != content}
    assert changed <= {"best.json"}


def test_a_signal_that_breaks_the_step_is_a_stop_and_no_traceback(zygote, reference, tmp_path):
    """A signal to the process group also kills the compilers that a first step starts."""
    run = tmp_path / "run"
    ended = zygote.run(run, stop_at=31, compiler_dies_too=True)
    assert ended.code == 75
    assert "stopped by a signal within step 32 (RuntimeError), which is not saved" in ended.text
    assert f"go on with: nearsight resume {run}" in ended.text
    assert "Traceback" not in ended.text
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)
