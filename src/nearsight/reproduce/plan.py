"""What is left to run, and how long it may take: speeds of earlier results, else those that the experiment states."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from nearsight.reproduce.evidence import read_result
from nearsight.reproduce.experiment import Experiment, PlannedRun


@dataclass(frozen=True)
class Plan:
    """The runs of an experiment at a scale."""

    done: tuple[PlannedRun, ...]
    left: tuple[PlannedRun, ...]
    speeds: dict[str, float]
    """Images a second while training, by row."""

    def seconds(self, run: PlannedRun) -> float | None:
        """Of training, without evaluations; None where no speed is known."""
        speed = self.speeds.get(run.row.name)
        return run.scale.samples / speed if speed else None

    def total(self, runs: Sequence[PlannedRun], jobs: int) -> float | None:
        known = [self.seconds(run) for run in runs]
        return None if None in known else sum(one for one in known if one) / jobs


def make_plan(experiment: Experiment, scale: str, results: Path, rows: Collection[str] = ()) -> Plan:
    """Of all rows, or of these."""
    for chosen in rows:
        if chosen not in experiment.scale(scale).rows:
            raise ValueError(
                f"{experiment.name} has no row {chosen!r} at scale {scale}; it has {', '.join(experiment.rows)}"
            )
    done: list[PlannedRun] = []
    left: list[PlannedRun] = []
    measured: dict[str, list[float]] = {}
    for run in experiment.runs(scale):
        if rows and run.row.name not in rows:
            continue
        result = read_result(results, run)
        (left if result is None else done).append(run)
        if result is not None:
            measured.setdefault(run.row.name, []).append(result.record["images_per_second"])
    stated, speeds = experiment.scale(scale).images_per_second, dict[str, float]()
    for name, row in experiment.rows.items():
        if name in measured:
            speeds[name] = mean(measured[name])
        elif known := stated.get(name) or stated.get(row.base):
            speeds[name] = known
    return Plan(tuple(done), tuple(left), speeds)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def plan_lines(experiment: Experiment, scale: str, plan: Plan, jobs: int) -> list[str]:
    """The plan for a person, a line for each row."""
    at = experiment.scale(scale)
    lines = [
        f"{experiment.name} at scale {scale}: {experiment.question}",
        f"  {len(plan.done)} of {len(plan.done) + len(plan.left)} runs have a result; each sees {at.samples:,} samples "
        f"of {at.data}; expected for the rest with {jobs} at a time: {duration(plan.total(plan.left, jobs))}",
    ]
    for row in at.rows:
        own = [run for run in plan.left if run.row.name == row]
        if own:
            speed = f"{plan.speeds[row]:.0f} images/s" if row in plan.speeds else "speed unknown"
            lines.append(f"  {row}: {len(own)} runs of {duration(plan.seconds(own[0]))} ({speed})")
    return lines
