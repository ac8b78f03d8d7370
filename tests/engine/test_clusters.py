"""Several processes as the pages say: torchrun's own parser reads the commands, submitit runs the script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pictures import make_folder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "submit_slurm.py"
PAGES = [ROOT / "docs" / "training.md", *sorted((ROOT / "recipes").glob("*.yaml"))]
COMMANDS = [line for page in PAGES for line in re.findall(r"torchrun .*nearsight train .*", page.read_text())]


def test_there_are_such_commands():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_torchrun_leaves_our_options_alone(command):
    from torch.distributed.run import parse_args

    read = parse_args(shlex.split(command)[1:])
    assert read.no_python
    assert read.training_script == "nearsight"
    assert "--run" in read.training_script_args


def start(tmp_path, *words):
    command = [sys.executable, str(SCRIPT), "--logs", str(tmp_path / "logs"), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_slurm_is_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (("sbatch", f"cp $1 {tmp_path}/job.sh; echo Submitted batch job 12"), ("srun", "true")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    job = start(tmp_path, "--gpus", "4", "--minutes", "90", "--partition", "p", "--", "DATA", "--run", "/shared/r")
    printed, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors
    assert printed.startswith("job 12, ")
    asked = (tmp_path / "job.sh").read_text()
    for wanted in ("--gpus-per-node=4", "--ntasks-per-node=1", "--time=90", "--partition=p", "--signal=USR2@120"):
        assert f"#SBATCH {wanted}\n" in asked


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the job's process in /proc")
def test_a_job_whose_time_is_up_goes_on_in_its_next_turn(tmp_path):
    pytest.importorskip("submitit")
    folder, run = make_folder(tmp_path / "pics"), tmp_path / "run"
    model = "--model convit_nano_32 --image-size 8 --patch-size 4 --batch 16 --mixup 0 --cutmix 0"
    words = shlex.split(f"{model} --epochs 300 --eval-every 100 --no-report --device cpu")
    job = start(tmp_path, "--cluster", "local", "--gpus", "0", "--", str(folder), "--run", str(run), *words)
    deadline = time.monotonic() + 90
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(_process_of_the_job(tmp_path / "logs"), signal.SIGUSR2)  # submitit's warning that time is nearly up
    _, errors = job.communicate(timeout=90)
    assert job.returncode == 0, errors
    (log,) = (tmp_path / "logs").glob("*_log.out")
    assert "resumed after step" in log.read_text()
    assert json.loads((run / "done.json").read_text())["world_size"] == 2


def _process_of_the_job(logs: Path) -> int:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # processes come and go
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"submitit.core._submit" in words and str(logs).encode() in words:
                return int(entry.name)
    raise AssertionError("the job has no process")
