"""Runs what is missing of an experiment: each run in a process of its own, several side by side.

It can be stopped or killed at any instant; the same command goes on, to the same results. A run has one owner, by the
lock of its folder: two runners side by side share an experiment's runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from nearsight.reproduce.evidence import read_result, result_path, run_path
from nearsight.reproduce.experiment import Experiment, PlannedRun
from nearsight.reproduce.plan import cores, duration, make_plan
from nearsight.runs.exits import FolderInUseError, PreemptedError, stop_on_signals
from nearsight.runs.layout import DONE

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Where:
    """Where runs read and write."""

    runs: Path
    results: Path
    data: str = ""
    """In place of the experiment's data."""
    download: bool = False


@dataclass(frozen=True)
class _Started:
    run: PlannedRun
    process: subprocess.Popen[bytes]
    log: Path
    since: float


class Runner:
    """The runs of an experiment that are left, those that are going, and how others ended."""

    def __init__(
        self,
        experiment: Experiment,
        scale: str,
        where: Where,
        *,
        jobs: int,
        rows: Collection[str] = (),
        tell: Callable[[str], None] = print,
    ) -> None:
        self.experiment, self.scale, self.where, self.jobs, self.tell = experiment, scale, where, jobs, tell
        self.plan = make_plan(experiment, scale, where.results, rows)
        self.waiting = list(self.plan.left)
        self.running: list[_Started] = []
        self.failed: list[PlannedRun] = []
        self.elsewhere: list[PlannedRun] = []

    def run(self) -> int:
        """Returns an exit code: 0 when every result is there, or in the hands of another process."""
        with stop_on_signals() as stop:
            try:
                while not stop and (self._fill() or self.running):
                    time.sleep(_POLL_SECONDS)
                    self._collect()
            finally:
                self._stop()
        if stop:
            self.tell("stopped; the same command goes on")
            return PreemptedError.code
        for run in self.waiting:
            self.tell(f"{run.name}: not run: its teacher {run.row.teacher} has no finished run in {self.where.runs}")
        if self.elsewhere:
            self.tell(f"in the hands of another process: {', '.join(run.name for run in self.elsewhere)}")
        return 1 if self.failed or self.waiting else 0

    def _fill(self) -> bool:
        """Start runs until `jobs` are going; whether one was started."""
        ready = [run for run in self.waiting if self._can_start(run)]
        chosen = ready[: max(0, self.jobs - len(self.running))]
        for run in chosen:
            self.waiting.remove(run)
            if read_result(self.where.results, run) is None:  # another runner may have been here
                self._start(run)
        return bool(chosen)

    def _can_start(self, run: PlannedRun) -> bool:
        return run.teacher is None or (run_path(self.where.runs, run.teacher) / DONE).is_file()

    def _start(self, run: PlannedRun) -> None:
        where, folder = self.where, run_path(self.where.runs, run)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_name(f"{run.name}.log")
        words = [self.experiment.source_file, self.scale, run.name, "--runs", where.runs, "--results", where.results]
        words += ["--data", where.data] if where.data else []
        words += ["--download"] if where.download else []
        threads = str(max(1, cores() // self.jobs))
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "nearsight.reproduce.worker", *map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads},
            )
        self.running.append(_Started(run, process, log, time.monotonic()))
        self.tell(f"{run.name}: started")

    def _collect(self) -> None:
        """Take note of the processes that have ended."""
        for started in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(started)
            self._note_end(started)

    def _note_end(self, started: _Started) -> None:
        run, code = started.run, started.process.returncode
        if code == FolderInUseError.code:
            self.elsewhere.append(run)
        elif code or (result := read_result(self.where.results, run)) is None:
            self.failed.append(run)
            self.tell(
                f"{run.name}: ended with exit code {code}: {_last_line(started.log)} (all of it in {started.log})"
            )
        else:
            took = duration(time.monotonic() - started.since)
            plan = make_plan(self.experiment, self.scale, self.where.results)
            left = [*self.waiting, *(one.run for one in self.running)]
            split = "test" if run.experiment.reads_test else "val"
            self.tell(
                f"{run.name}: {split} {result.accuracy:.2f} %, {took} ({result_path(self.where.results, run)}); "
                f"{len(left)} runs left, {duration(plan.total(left, self.jobs))}"
            )

    def _stop(self) -> None:
        """Ask the processes that are going to save and leave, and wait for them."""
        for started in self.running:
            started.process.terminate()
        for started in self.running:
            started.process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no output")
