"""From a recipe and a folder to a finished run: the function behind ``nearsight train`` and ``nearsight resume``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from nearsight.engine.callbacks import Callback, CallbackList
from nearsight.engine.device import pick_device, prepare_torch
from nearsight.engine.distributed import World, join_processes
from nearsight.engine.sharding import is_sharded, scatter_model
from nearsight.engine.state import batch_norms
from nearsight.engine.task import Task, evaluated
from nearsight.engine.trainer import Trainer
from nearsight.recipes.recipe import Recipe
from nearsight.runs.exits import DiskError, stop_on_signals
from nearsight.runs.folder import RunFolder, Selected
from nearsight.runs.identity import DataRecord, check_run, finished_summary, record_run
from nearsight.runs.layout import DONE, REPORT
from nearsight.runs.metrics_log import spelled
from nearsight.tasks import task_kind
from nearsight.text import typed
from nearsight.weights import load_weights


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    open_task: Callable[..., Task] | None = None,
    callbacks: Callable[[Trainer], Sequence[Callback]] | None = None,
    override: bool = False,
    fit_batch: bool = False,
) -> dict[str, Any]:
    """Train ``recipe`` in ``folder``, or go on with the run that is there. Returns the summary in ``done.json``.

    ``open_task(recipe, fit_batch=…)`` opens the data, by default as the task that the recipe names does. The task's
    ``recipe`` is the one that is used: with ``fit_batch`` a set that does not fill four batches has smaller ones.
    ``callbacks`` makes those of the main process; the others have none.
    Raises a ``RunEnded`` (whose ``code`` is the exit code) when the run stops early, ``ValueError`` for bad input.
    """
    if not recipe.data:
        raise ValueError(f"no data was given: name a folder or a dataset, such as: {typed('train', 'clothing')}")
    with contextlib.ExitStack() as cleanup:
        world = cleanup.enter_context(join_processes(pick_device(recipe.device).type))
        device = pick_device(recipe.device, world.local_rank)
        prepare_torch(recipe, device)
        stop = cleanup.enter_context(stop_on_signals())
        # Data and model first: a mistake in their names leaves no folder behind.
        # A run that has weights of its own no longer needs those it started from, which may be gone.
        begun = bool(folder.checkpoints().steps())
        if open_task is None:
            kind = task_kind(recipe.task)
            recipe, open_task = kind.complete_recipe(recipe, folder), kind.open_task
        task = open_task(recipe.with_changes(weights="") if begun else recipe, fit_batch=fit_batch)
        asked, recipe = recipe, task.recipe.with_changes(weights=recipe.weights)
        trainer = Trainer(task, recipe, folder, world=world, device=device, stop=stop)
        cleanup.callback(trainer.close)
        if world.is_main:
            cleanup.enter_context(folder.owned())
        fingerprint = world.of_main(task.fingerprint)
        if fingerprint is not None:
            data = DataRecord(fingerprint, task.files(), task.not_read())
            continues = check_run(folder, recipe, data, total_steps=trainer.total_steps, override=override)
            if not continues:
                record_run(folder, recipe, data, device)
        world.barrier()
        if world.is_main and callbacks is not None:
            trainer.callbacks = CallbackList(callbacks(trainer))
            cleanup.callback(trainer.callbacks.close)
        for line in task.describe():
            trainer.note(line)
        if recipe.batch != asked.batch:
            trainer.note(f"a batch of {recipe.batch}, for few training images; --batch sets another")
        if trainer.frozen_steps == trainer.total_steps:
            trainer.note(
                f"frozen_epochs {recipe.frozen_epochs:g} of {recipe.epochs:g}: the head alone learns throughout"
            )
        if batch_norms(trainer.state.model) and trainer.total_steps * (1 - recipe.norm_decay) < 2:
            trainer.note(
                f"warning: with norm_decay {recipe.norm_decay:g}, batch norm's statistics need far more steps than the "
                f"{trainer.total_steps} of this run, and evaluation will be wrong: use --norm-decay 0"
            )
        summary = finished_summary(folder, trainer.total_steps) or {}
        report_due = recipe.report
        if world.broadcast(len(summary)):  # as the main process sees it: others may see an older state of a shared disk
            trainer.note("this run is finished; its summary is in done.json")
            if world.is_main:
                _require_selected(folder.selected(), summary)
            report_due = bool(world.broadcast(recipe.report and not (folder.path / REPORT).is_file()))
            if report_due:
                _select_weights(trainer)
        else:
            trainer.restore(override=override)
            if world.is_main and continues:
                record_run(folder, recipe, data, device)  # only now: if restoring fails, the old record stays
            trainer.run()
            world.barrier()
            _select_weights(trainer)
            summary = _finish(trainer, world)
        if world.is_main and report_due:
            _write_report(trainer, summary)
        return summary


def _select_weights(trainer: Trainer) -> None:
    """Put the weights that validation selected into the model."""
    selected = trainer.folder.selected()
    if trainer.progress.best is not None:
        _require_selected(selected, {"selected": trainer.progress.best})
    weights = selected.weights
    if is_sharded(trainer.state.model):
        scatter_model(trainer.state.model, weights)
    else:
        load_weights(trainer.state.model, weights, str(trainer.folder.path))


def _require_selected(found: Selected, summary: dict[str, Any]) -> None:
    """A ``DiskError`` where a summary's figures are of other weights than those that are found."""
    named = summary.get("selected")
    if named is not None and named["step"] != found.step:
        raise DiskError(f"the figures are of step {named['step']}, and the selected weights here are of {found.step}")


def _finish(trainer: Trainer, world: World) -> dict[str, Any]:
    """Measure the selected weights, once, on the test split, and write down how the run ended."""
    folder, task, model = trainer.folder, trainer.task, trainer.state.model
    measured = evaluated(task, model, "test", trainer.context) if task.has_split("test") else None
    summary: dict[str, Any] = {
        "steps": trainer.progress.step,
        **({"planned_steps": trainer.total_steps} if trainer.progress.ended else {}),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "selected": trainer.progress.best,
        "skipped_steps": trainer.progress.skipped,
        "seconds": round(trainer.clock.seconds, 1),
        "world_size": world.size,
        "remarks": task.remarks(model, trainer.context),
        "problems": task.problems(),
        "images": dict(task.num_images()),
    }
    if measured is not None:
        summary["test"] = measured
    if world.is_main:
        (folder.path / REPORT).unlink(missing_ok=True)  # a report of fewer epochs must not remain
        folder.write_json(DONE, spelled(summary))
    return summary


def _write_report(trainer: Trainer, summary: dict[str, Any]) -> None:
    """The run is complete and saved, so a report that fails is a warning, not an error."""
    from nearsight.reports.run_report import write_report

    try:
        pages = trainer.task.report_pages(trainer.state.model, trainer.folder.metrics(), trainer.context.alone())
        path = write_report(trainer.folder, trainer.recipe, summary, pages, trainer.task.selection)
    except Exception as error:
        trainer.note(f"warning: the report could not be written: {error}")
    else:
        trainer.note(f"report: {path}")
