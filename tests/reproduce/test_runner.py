"""Runs of an experiment: killed and gone on with, side by side, never twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_experiment import EXPERIMENT, write_experiment

from nearsight.reproduce.evidence import pack, read_result, read_results, result_path, run_path, unpack
from nearsight.reproduce.experiment import load_experiment
from nearsight.reproduce.plan import make_plan
from nearsight.reproduce.runner import Runner, Where
from nearsight.reproduce.worker import carry_out
from nearsight.runs.exits import PREEMPTED
from nearsight.runs.folder import RunFolder

ONE = EXPERIMENT.replace("seeds: [0, 1], fractions: [0.5, 1.0]", "seeds: [0], fractions: [0.5], rows: [convit]")
LEARNED = ("hash", "settings", "samples", "parameters", "data", "test", "val", "start", "curve")
"""Keys of a result that the machine and the hour do not change."""


@pytest.fixture
def where(tmp_path: Path) -> Where:
    return Where(tmp_path / "runs", tmp_path / "results")


def learned(record: dict) -> dict:
    return {key: record[key] for key in LEARNED}


@pytest.mark.parametrize("count", [1, 8, 9, 372])
def test_packing_is_undone(count):
    correct = np.random.default_rng(count).random(count) < 0.5
    assert (unpack(pack(correct), count) == correct).all()


def test_a_result_says_which_pictures_were_right(tmp_path, where):
    run = load_experiment(str(write_experiment(tmp_path, ONE))).runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    result = read_result(where.results, run)
    assert result is not None
    assert result.record["test"]["split"] == "test"
    assert len(result.correct) == 8
    assert result.accuracy == pytest.approx(100 * result.correct.mean())
    curve = result.record["curve"]
    assert curve["step"] == [5, 10, 15, 20]
    assert [len(layers) for layers in curve["nonlocality"]] == [3] * 4
    assert [len(gates[0]) for gates in curve["gates"]] == [9] * 4
    (gates,) = result.record["start"]["gates"]
    assert gates == pytest.approx([torch.tensor(1.0).sigmoid().item()] * 9, abs=1e-5)


def test_training_never_opens_the_test_pictures(tmp_path, where, monkeypatch):
    from nearsight.reproduce import worker

    run = load_experiment(str(write_experiment(tmp_path, ONE))).runs("smoke")[0]
    monkeypatch.setattr(worker, "describe_run", lambda run, folder: {"hash": run.hash()})
    carry_out(run, where.runs, where.results)
    folder = RunFolder(run_path(where.runs, run))
    assert "test" not in folder.read_json("done.json")
    assert "test" not in folder.read_json("data.json")


def test_a_search_has_no_test_accuracy(tmp_path, where):
    run = load_experiment(str(write_experiment(tmp_path, ONE + "reads_test: false\n"))).runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    result = read_result(where.results, run)
    assert result.record["test"] is None
    assert result.accuracy == result.record["val"]["accuracy"]


def test_data_without_a_test_split_is_measured_on_val(tmp_path, where):
    path = write_experiment(tmp_path, ONE)
    with np.load(tmp_path / "pictures.npz") as arrays:
        np.savez(tmp_path / "pictures.npz", **{name: arrays[name] for name in arrays if not name.startswith("test")})
    run = load_experiment(str(path)).runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    record = read_result(where.results, run).record
    assert record["test"]["split"] == "val"
    assert record["test"]["accuracy"] == pytest.approx(record["val"]["accuracy"])


def test_a_result_is_never_made_twice(tmp_path, where):
    experiment = load_experiment(str(write_experiment(tmp_path, ONE)))
    run = experiment.runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    path = result_path(where.results, run)
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    marked = path.read_bytes()
    carry_out(run, where.runs, where.results)
    runner = Runner(experiment, "smoke", where, jobs=1, tell=lambda text: pytest.fail(text))
    assert runner.run() == 0
    assert path.read_bytes() == marked


def test_a_trained_run_without_a_result_is_only_evaluated(tmp_path, where):
    run = load_experiment(str(write_experiment(tmp_path, ONE))).runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    before = learned(read_result(where.results, run).record)
    trained = (run_path(where.runs, run) / "metrics.jsonl").stat().st_mtime_ns
    result_path(where.results, run).unlink()
    carry_out(run, where.runs, where.results)
    assert learned(read_result(where.results, run).record) == before
    assert (run_path(where.runs, run) / "metrics.jsonl").stat().st_mtime_ns == trained


def test_a_result_of_other_settings_is_refused(tmp_path, where):
    run = load_experiment(str(write_experiment(tmp_path, ONE))).runs("smoke")[0]
    carry_out(run, where.runs, where.results)
    changed = load_experiment(str(write_experiment(tmp_path, ONE.replace("samples: 160", "samples: 80"))))
    with pytest.raises(ValueError, match=r"convit-f50-s0\.json was made with other settings"):
        read_results(where.results, changed, "smoke")


def test_a_run_in_other_hands_is_left_to_them(tmp_path, where):
    experiment = load_experiment(str(write_experiment(tmp_path, ONE)))
    run = experiment.runs("smoke")[0]
    # The lock of a process: another one has to hold it.
    hold = "import sys; from nearsight.runs.folder import RunFolder\nwith RunFolder(sys.argv[1]).owned():\n"
    hold += " print('held', flush=True); sys.stdin.read()"
    folder = run_path(where.runs, run)
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        told: list[str] = []
        assert Runner(experiment, "smoke", where, jobs=1, tell=told.append).run() == 0
        assert told[-1] == "in the hands of another process: convit-f50-s0"
        assert read_result(where.results, run) is None
        owner.communicate()


def start_runner(experiment: Path, where: Where) -> subprocess.Popen:
    words = ["reproduce", experiment, "--scale", "smoke", "--runs", where.runs, "--results", where.results]
    return subprocess.Popen([sys.executable, "-m", "nearsight", *map(str, words)], stdout=subprocess.PIPE, text=True)


def wait_for_checkpoint(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "checkpoints" / "last.json").exists():
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.01)


LONGER = ONE.replace("samples: 160", "samples: 800")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    """The result of a run that nothing stopped, with as many threads as the others."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path, where = write_experiment(folder, LONGER), Where(folder / "runs", folder / "results")
    with start_runner(path, where) as runner:
        runner.communicate(timeout=120)
    assert runner.returncode == 0
    return read_result(where.results, load_experiment(str(path)).runs("smoke")[0]).record


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_runner_goes_on_to_the_same_result(tmp_path, where, number, undisturbed):
    path = write_experiment(tmp_path, LONGER)
    run = load_experiment(str(path)).runs("smoke")[0]
    runner = start_runner(path, where)
    wait_for_checkpoint(run_path(where.runs, run))
    os.kill(runner.pid, number)
    runner.communicate(timeout=120)
    assert runner.returncode == (PREEMPTED if number == signal.SIGTERM else -number)
    assert read_result(where.results, run) is None, "it ended before it was stopped"
    finished = start_runner(path, where)
    assert "0 runs left" in finished.communicate(timeout=120)[0]
    assert finished.returncode == 0
    assert "resumed after step" in run_path(where.runs, run).with_name("convit-f50-s0.log").read_text()
    assert learned(read_result(where.results, run).record) == learned(undisturbed)


def test_a_failed_run_is_told_with_its_reason(tmp_path, where):
    text = ONE.replace("model: convit_nano_32", "model: convit_nano_33")
    experiment = load_experiment(str(write_experiment(tmp_path, text)))
    told: list[str] = []
    assert Runner(experiment, "smoke", where, jobs=1, tell=told.append).run() == 1
    assert "exit code 2" in told[-1]
    assert "convit_nano_33" in told[-1]


def test_a_plan_tells_times_from_results_and_from_the_file(tmp_path, where):
    text = EXPERIMENT.replace("evaluations: 4", "evaluations: 4, images_per_second: {deit: 20, convit: 1}")
    experiment = load_experiment(str(write_experiment(tmp_path, text)))
    plan = make_plan(experiment, "smoke", where.results)
    assert [plan.seconds(run) for run in plan.left[:2]] == [8, 160]
    assert plan.total(plan.left, jobs=2) == (4 * 8 + 4 * 160) / 2
    carry_out(plan.left[1], where.runs, where.results)
    measured = read_result(where.results, plan.left[1]).record["images_per_second"]
    plan = make_plan(experiment, "smoke", where.results)
    assert (len(plan.done), len(plan.left)) == (1, 7)
    assert plan.speeds == {"deit": 20, "convit": measured}


def test_a_pupil_waits_for_its_teacher(tmp_path, where):
    pupil = "  pupil: {title: taught, teacher: convit, settings: {model: deit_nano_32_distilled, patch_size: 4, "
    pupil += "distillation: hard, model_options: {width: 9, depth: 2}}}\nscales:"
    text = EXPERIMENT.replace("scales:", pupil).replace("seeds: [0, 1], fractions: [0.5, 1.0]", "seeds: [0]")
    experiment = load_experiment(str(write_experiment(tmp_path, text.replace("[0]}", "[0], rows: [pupil, convit]}"))))
    told: list[str] = []
    assert Runner(experiment, "smoke", where, jobs=2, tell=told.append).run() == 0
    assert [line for line in told if "started" in line] == ["convit-f100-s0: started", "pupil-f100-s0: started"]
    assert len(read_results(where.results, experiment, "smoke")) == 2
