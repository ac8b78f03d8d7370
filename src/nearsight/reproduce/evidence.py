"""A finished run as one small JSON file: what was run on what, and which test pictures it got right.

results/reproduction/SCALE/EXPERIMENT/RUN.json. The run's folder is no longer needed then.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearsight.reproduce.experiment import Experiment, PlannedRun
from nearsight.runs.atomic_files import disk_errors, replace


def result_path(results: Path, run: PlannedRun) -> Path:
    return results / run.scale.name / run.experiment.name / f"{run.name}.json"


def run_path(runs: Path, run: PlannedRun) -> Path:
    return runs / run.scale.name / run.experiment.name / run.name


def pack(correct: np.ndarray) -> str:
    """Zeros and ones [pictures] as text: eight to a byte."""
    return base64.b64encode(np.packbits(correct.astype(bool)).tobytes()).decode()


def unpack(text: str, count: int) -> np.ndarray:
    """`pack`, undone: uint8 [count]."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=count)


def write_result(path: Path, record: dict[str, Any]) -> None:
    """One line for each key: short files, and changes that can be read."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items())
    with disk_errors(f"writing {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, f"{{\n{lines}\n}}\n".encode())


@dataclass(frozen=True)
class Result:
    """The evidence of one run."""

    run: PlannedRun
    path: Path
    record: dict[str, Any]

    @property
    def correct(self) -> np.ndarray:
        """[pictures] of zeros and ones."""
        test = self.record["test"]
        return unpack(test["correct"], test["pictures"])

    @property
    def accuracy(self) -> float:
        """On the test pictures; where those were not read, on val."""
        return self.record["test" if self.record["test"] else "val"]["accuracy"]


def read_result(results: Path, run: PlannedRun) -> Result | None:
    """The result of a run if it is there; an error where it is one of other settings."""
    path = result_path(results, run)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_bytes())
        made_with = record["hash"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it, and the run is evaluated again") from error
    if made_with != run.hash():
        raise ValueError(
            f"{path} was made with other settings than {run.experiment.name} has now (hash {made_with}, now "
            f"{run.hash()}); move it away, with its run's folder, to run it again"
        )
    return Result(run, path, record)


def read_results(results: Path, experiment: Experiment, scale: str) -> list[Result]:
    """Those of an experiment that are there, in the order of its runs."""
    found = (read_result(results, run) for run in experiment.runs(scale))
    return [result for result in found if result is not None]
