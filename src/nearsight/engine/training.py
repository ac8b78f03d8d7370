"""From a recipe and a folder to a finished run: the function behind ``nearsight train`` and ``nearsight resume``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from nearsight.engine import sharding
from nearsight.engine.batch_size import BatchTooLargeError
from nearsight.engine.callbacks import Listener, Listeners
from nearsight.engine.device import pick_device, prepare_torch
from nearsight.engine.distributed import World, joined_world
from nearsight.engine.signals import listening
from nearsight.engine.task import Task
from nearsight.engine.trainer import Trainer
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder
from nearsight.runs.identity import DataRecord, check_run, finished_summary, record_run
from nearsight.runs.layout import DONE, REPORT
from nearsight.runs.metrics_log import spelled
from nearsight.weights.loading import load_weights

Audience = Callable[[Trainer], Sequence[Listener]]


def make_task(recipe: Recipe) -> Task:
    """The task a recipe names."""
    if recipe.task == "detection":
        from nearsight.detection.task import DetectionTask

        return DetectionTask(recipe)
    from nearsight.classification.task import ClassificationTask

    return ClassificationTask(recipe)


def _fitting_task(recipe: Recipe, folder: RunFolder, fit_batch: bool) -> tuple[Recipe, Task]:
    """The task, and the recipe with a batch that suits the data where another is allowed.

    A run that has weights of its own no longer needs those it started from, which may be gone.
    """
    allowed = recipe.with_changes(batch_auto=recipe.batch_auto or fit_batch)
    if folder.checkpoints().steps():
        allowed = allowed.with_changes(init_from="")
    try:
        return recipe, make_task(allowed)
    except BatchTooLargeError as error:
        if not allowed.batch_auto:
            raise
        fits = error.fits
    return recipe.with_changes(batch=fits), make_task(allowed.with_changes(batch=fits))


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    task: Task | None = None,
    audience: Audience | None = None,
    override: bool = False,
    fit_batch: bool = False,
) -> dict[str, Any]:
    """Train ``recipe`` in ``folder``, or go on with the run that is there. Returns the summary in ``done.json``.

    ``fit_batch``: a set too small for four of the recipe's batches may have smaller ones.
    Raises a ``RunEnded`` (whose ``code`` is the exit code) when the run stops early, ``ValueError`` for bad input.
    """
    with contextlib.ExitStack() as cleanup:
        world = cleanup.enter_context(joined_world(pick_device(recipe.device).type))
        device = pick_device(recipe.device, world.local_rank)
        prepare_torch(recipe, device)
        stop = cleanup.enter_context(listening())
        # Data and model first: a mistake in their names leaves no folder behind.
        asked_batch = recipe.batch
        if task is None:
            recipe, task = _fitting_task(recipe, folder, fit_batch)
        trainer = Trainer(task, recipe, folder, world=world, device=device, stop=stop)
        cleanup.callback(trainer.close)
        if world.leads:
            cleanup.enter_context(folder.owned())
            data = DataRecord(task.fingerprint(), task.files())
            continues = check_run(folder, recipe, data, total_steps=trainer.total_steps, override=override)
            if not continues:
                record_run(folder, recipe, data, device)
        world.wait()
        if world.leads and audience is not None:
            trainer.listeners = Listeners(audience(trainer))
            cleanup.callback(trainer.listeners.close)
        for line in task.describe():
            trainer.note(line)
        if recipe.batch != asked_batch:
            trainer.note(f"a batch of {recipe.batch}, for few training images; --batch sets another")
        summary = finished_summary(folder, trainer.total_steps) or {}
        report_due = recipe.report
        if world.tell(len(summary)):  # the lead's word: others may see an older state of a shared disk
            trainer.note("this run is finished; its summary is in done.json")
            report_due = bool(world.tell(recipe.report and not (folder.path / REPORT).is_file()))
            if report_due:
                _select_weights(trainer)
        else:
            trainer.restore()
            if world.leads and continues:
                record_run(folder, recipe, data, device)  # not before: what cannot be resumed keeps its record
            trainer.run()
            world.wait()
            _select_weights(trainer)
            summary = _finish(trainer, world)
        if world.leads and report_due:
            _write_report(trainer, summary)
        return summary


def _select_weights(trainer: Trainer) -> None:
    """Put the weights that validation selected into the model."""
    weights = trainer.folder.selected_weights()
    if sharding.is_sharded(trainer.bench.model):
        sharding.scatter_model(trainer.bench.model, weights)
    else:
        load_weights(trainer.bench.model, weights, str(trainer.folder.path))


def _finish(trainer: Trainer, world: World) -> dict[str, Any]:
    """Measure the selected weights, once, on the test split, and write down how the run ended."""
    folder, task, bench = trainer.folder, trainer.task, trainer.bench
    measured = dict(task.evaluate(bench.model, "test", trainer.context)) if task.has_split("test") else None
    summary: dict[str, Any] = {
        "steps": trainer.total_steps,
        "parameters": sum(parameter.numel() for parameter in bench.model.parameters()),
        "selected": trainer.progress.best,
        "skipped_steps": trainer.progress.skipped,
        "seconds": round(trainer.clock.seconds, 1),
        "world_size": world.size,
        "problems": task.problems(),
    }
    if measured is not None:
        summary["test"] = measured
    if world.leads:
        (folder.path / REPORT).unlink(missing_ok=True)  # one of a shorter run must not pass for this run's
        folder.write_json(DONE, spelled(summary))
    return summary


def _write_report(trainer: Trainer, summary: dict[str, Any]) -> None:
    """The run is over and safe: trouble with a picture is worth a sentence, not an error."""
    from nearsight.reports.run_report import write_report

    try:
        pages = trainer.task.report_pages(trainer.bench.model, trainer.folder.metrics(), trainer.context)
        path = write_report(trainer.folder, trainer.recipe, summary, pages, trainer.task.selection)
    except Exception as error:
        trainer.note(f"warning: the report could not be written: {error}")
    else:
        trainer.note(f"report: {path}")
