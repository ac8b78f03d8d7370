"""One run of an experiment, from the first step to its result: the program of a process that the runner starts.

    python -m nearsight.reproduce.worker EXPERIMENT SCALE RUN --runs FOLDER --results FOLDER

Training never opens the test pictures. They are read once, when the last step is taken.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from nearsight.bench.measure import environment
from nearsight.classification.correct import correct_pictures
from nearsight.classification.data import open_splits
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.engine.callbacks import make_progress
from nearsight.engine.data import check_batch
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.engine.training import train
from nearsight.randomness import INITIALISATION_STREAM, hash32
from nearsight.reproduce.evidence import pack, read_result, result_path, run_path, write_result
from nearsight.reproduce.experiment import PlannedRun, load_experiment
from nearsight.runs.exits import die_with_parent, reported
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DONE, ENVIRONMENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("experiment", "scale", "run"):
        parser.add_argument(name)
    parser.add_argument("--data", default="")
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    given = parser.parse_args()
    die_with_parent()
    with reported():
        run = load_experiment(given.experiment).run(given.scale, given.run)
        carry_out(run, given.runs, given.results, data=given.data, download=given.download)


def carry_out(run: PlannedRun, runs: Path, results: Path, *, data: str = "", download: bool = False) -> None:
    """Train what is left to train, and write the result if it is not there."""
    folder = RunFolder(run_path(runs, run))
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    recipe = complete_recipe(run, runs, data=data or run.scale.data, download=download)
    train(recipe, folder, open_task=_without_test, callbacks=lambda t: [make_progress(t.total_steps, style="plain")])
    with folder.owned():  # of two processes that find a run trained, one reads the test pictures
        if read_result(results, run) is None:
            write_result(result_path(results, run), describe_run(run, folder))


def complete_recipe(run: PlannedRun, runs: Path, *, data: str, download: bool) -> ClassificationRecipe:
    """The recipe of a run on this data, whose size decides the number of epochs."""
    where: dict[str, Any] = {"data": data, "download": download}
    if run.teacher is not None:
        where["teacher"] = str(run_path(runs, run.teacher))
    size = open_splits(run.recipe(data=data, download=download)).epoch_size
    return run.recipe(**where, **run.length(size))


def _without_test(recipe: ClassificationRecipe, *, fit_batch: bool = False) -> ClassificationTask:
    splits = open_splits(recipe)
    return ClassificationTask(check_batch(recipe, splits, fit=fit_batch), dataclasses.replace(splits, test=None))


def describe_run(run: PlannedRun, folder: RunFolder) -> dict[str, Any]:
    """The record of a trained run. Reads the test pictures, if the experiment does."""
    recipe, done, metrics = folder.recipe(ClassificationRecipe), folder.read_json(DONE), folder.metrics()
    task = ClassificationTask(recipe.with_changes(teacher="", distillation="none", drop_path=0.0))
    evaluations = [record for record in metrics if record["kind"] == "eval"]
    speeds = [record["images_per_second"] for record in metrics if record["kind"] == "train"]
    splits = open_splits(recipe.with_changes(fraction=1.0)).named
    test = None
    if run.experiment.reads_test:
        # ImageNet has no test split: figures are of its val split, which selects nothing here.
        split = "test" if task.has_split("test") else "val"
        correct = correct_pictures(task, split, folder)
        accuracy = round(100 * float(correct.mean()), 4)
        test = {"split": split, "pictures": len(correct), "accuracy": accuracy, "correct": pack(correct)}
    return {
        "experiment": run.experiment.name,
        "scale": run.scale.name,
        "row": run.row.name,
        "fraction": run.fraction,
        "seed": run.seed,
        "hash": run.hash(),
        "recipe": run.scale.recipe,
        "settings": run.changes(),
        "samples": done["steps"] * recipe.batch,
        "parameters": done["parameters"],
        "data": {
            "source": Path(recipe.data).name,
            "pictures": {name: len(images) for name, images in splits.items()},
            "fingerprint": {name: images.fingerprint() for name, images in splits.items()},
        },
        "test": test,
        "val": {"pictures": len(splits["val"]), "accuracy": round(evaluations[-1]["val_top1"], 4)},
        "start": at_start(task),
        "curve": {
            name: [_rounded(record[name]) for record in evaluations]
            for name in ("step", "val_top1", "val_loss", "nonlocality", "gates")
            if name in evaluations[-1]
        },
        "hardware": environment(pick_device(recipe.device))["hardware"],
        "environment": folder.read_json(ENVIRONMENT),
        "images_per_second": statistics.median(speeds),
        "seconds": done["seconds"],
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
    }


def at_start(task: ClassificationTask) -> dict[str, Any]:
    """What evaluations observe, of the weights that the run started with."""
    torch.manual_seed(hash32(task.recipe.seed, INITIALISATION_STREAM))
    place = pick_device(task.recipe.device)
    model = task.build_model().eval().to(place)
    return dict(task.observe(model, ProcessContext(place, precision=pick_precision(task.recipe.precision, place))))


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
