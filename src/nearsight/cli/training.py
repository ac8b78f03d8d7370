"""``nearsight train``, ``resume``, ``eval`` and ``predict``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from nearsight.cli.recipe_options import DEFAULT_RECIPE, ChangeFlags, RecipeFlags, given_flags

if TYPE_CHECKING:
    from nearsight.engine.callbacks import Callback
    from nearsight.engine.trainer import Trainer
    from nearsight.recipes.recipe import Recipe

Show = Literal["auto", "plain", "json", "quiet"]
Flags = Annotated[RecipeFlags, Parameter(name="*")]  # type: ignore[valid-type]
Changes = Annotated[ChangeFlags, Parameter(name="*")]  # type: ignore[valid-type]
_NOTHING_GIVEN = RecipeFlags()
_NOTHING_CHANGED = ChangeFlags()
_LONGEST_PATH = 4096


def train(
    data: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    recipe: Annotated[str, Parameter(show_default=lambda _: DEFAULT_RECIPE)] = "",
    config: Path | None = None,
    run: Path | None = None,
    override: Annotated[bool, Parameter(negative="")] = False,
    show: Show = "auto",
    flags: Flags = _NOTHING_GIVEN,
) -> int:
    """Train a model on DATA, or go on with the run in --run.

    Settings come from a named recipe, then from --config, then from the options below; only differences from the recipe
    are printed. A run can be killed at any instant: `nearsight resume RUN` goes on, or the same command and --run.

    Parameters
    ----------
    data
        An image folder, .npz, .parquet, shards, an archive, a known dataset, or `clothing`, which comes with nearsight.
    recipe
        Named recipe to start from; `nearsight recipes` shows them side by side.
    config
        YAML file with any of the fields below.
    run
        Folder of the run; by default a new one under runs/.
    override
        Let a resumed run change settings that alter what is learned, such as lr.
    show
        How to report progress.
    """
    from nearsight.recipes.files import read_changes, resolve_recipe

    changes = given_flags(flags)
    if data:
        changes["data"] = data
    resolved = resolve_recipe(recipe, config, changes)
    path = run or _new_run_path(resolved, recipe)
    stated = read_changes(config) if config else {}
    base = recipe or stated.get("recipe") or DEFAULT_RECIPE
    fit_batch = "batch" not in {**stated, **changes}
    return _train(resolved, path, show=show, override=override, base=base, fit_batch=fit_batch)


def resume(
    run: Path,
    /,
    *,
    override: Annotated[bool, Parameter(negative="")] = False,
    show: Show = "auto",
    flags: Changes = _NOTHING_CHANGED,
) -> int:
    """Go on with a run that was stopped, from its last checkpoint, to the same result.

    Parameters
    ----------
    run
        Folder of the run.
    override
        Let the options below change what is learned, such as lr.
    show
        How to report progress.
    """
    from nearsight.recipes.files import apply_changes
    from nearsight.runs.folder import RunFolder

    recipe = apply_changes(RunFolder(run).recipe(), given_flags(flags), where="the command line")
    return _train(recipe, run, show=show, override=override, base=None)


def evaluate(
    run: Path,
    data: str = "",
    /,
    *,
    split: str = "",
    device: str = "auto",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure a run's selected weights on its own data or on DATA.

    Parameters
    ----------
    run
        Folder of the run.
    data
        Another source of images with the same classes, all of which are measured; the run's own by default.
    split
        train, val or test; by default test where there is one.
    device
        cpu, cuda, mps; auto takes the best there is.
    json
        Print JSON.
    """
    from nearsight.classification.use import evaluate as measure
    from nearsight.reports.words import measured
    from nearsight.runs.exits import reported
    from nearsight.runs.metrics_log import json_line
    from nearsight.text import printable

    with reported():
        found = measure(run, data, split=split, device=device)
    if json:
        print(json_line({"data": found.origin, "split": found.split, **found.values, "notes": list(found.notes)}))
        return 0
    print(found.origin)
    for name, value in found.values.items():
        print(f"{found.split}: {measured(name, value)}")
    for note in found.notes:
        print(printable(note))
    return 0


def predict(
    run: Path,
    images: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    top: int = 5,
    device: str = "auto",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Classify pictures with a run's selected weights.

    Parameters
    ----------
    run
        Folder of the run.
    images
        Picture files, or folders of them.
    top
        How many classes to show for each.
    device
        cpu, cuda, mps; auto takes the best there is.
    json
        Print one JSON object per picture.
    """
    from nearsight.classification import KIND, PredictOptions
    from nearsight.images.decode import picture_files
    from nearsight.runs.exits import reported
    from nearsight.runs.metrics_log import json_line

    options = PredictOptions(top=top)
    with reported():
        files = list(picture_files(images))  # a mistake in their names is told before the run is opened
        predictions = list(KIND.load(run, device).predict(files, options))
    if json:
        for one in predictions:
            print(json_line(one.record))
    else:
        _print_predictions(predictions)
    return 1 if any(one.problem for one in predictions) else 0


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Where a run ends early, what there is to say of it; where a signal ended it, also how to go on."""
    from nearsight.runs.exits import PREEMPTED, reported

    try:
        with reported():
            yield
    except SystemExit as leaving:
        if leaving.code == PREEMPTED:
            print(f"resume with: nearsight resume {path}", file=sys.stderr)
        raise


def _train(recipe: Recipe, path: Path, *, show: Show, override: bool, base: str | None, fit_batch: bool = False) -> int:
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.trackers import check_trackers, make_trackers
    from nearsight.engine.training import train as train_run
    from nearsight.recipes.files import describe_changes
    from nearsight.recipes.named import named_recipe
    from nearsight.runs.folder import RunFolder

    check_trackers(recipe)
    selections: list[str] = []  # only the main process has callbacks

    def callbacks(trainer: Trainer) -> list[Callback]:
        used = trainer.recipe  # its batch may be another, that suits the data
        selections.append(trainer.task.selection)
        members: list[Callback] = [make_progress(trainer.total_steps, style=show)]
        members.extend(make_trackers(used, path))
        if base is not None:
            for line in describe_changes(named_recipe(base), used):
                members[0].note(f"{base}: {line}")
        scaled = f"{used.lr:g} × {used.batch}/{used.lr_batch}" if used.lr_batch else f"{used.lr:g}"
        members[0].note(f"run: {path}  device: {trainer.device}  learning rate: {scaled} = {used.peak_lr:g}")
        return members

    with resumable(path):
        summary = train_run(recipe, RunFolder(path), callbacks=callbacks, override=override, fit_batch=fit_batch)
    if selections and show != "quiet":
        _print_summary(summary, path, show, selections[0])
    return 0


def _new_run_path(recipe: Recipe, name: str) -> Path:
    from nearsight.engine.distributed import launched_by_torchrun
    from nearsight.runs.folder import free_run_path

    if launched_by_torchrun():
        raise ValueError("under torchrun the run needs a name that restarts can find: add --run runs/NAME")
    stem = "".join(char if char.isalnum() else "-" for char in f"{Path(recipe.data).stem}-{recipe.model}")
    return free_run_path(Path("runs"), stem.strip("-") or name or "run")


def _print_summary(summary: dict[str, Any], path: Path, show: Show, selection: str) -> None:
    from nearsight.reports.words import measured, weights_words
    from nearsight.runs.metrics_log import json_line
    from nearsight.text import printable

    if show == "json":
        print(json_line({"kind": "done", "run": str(path), **summary}))
        return
    selected = summary.get("selected")
    if selected:
        value, weights = measured(selection, selected["value"]), weights_words(selected["weights"])
        print(f"selected on val: {value} at step {selected['step']} ({weights})")
    for name, value in summary.get("test", {}).items():
        print(f"test: {measured(name, value)} (weights selected on val)")
    for problem in summary.get("problems", [])[:5]:
        print(f"unreadable image: {printable(problem)}")
    print(f"run: {printable(str(path), _LONGEST_PATH)}")


def _print_predictions(predictions: list[Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from nearsight.text import printable

    table = Table(Column("picture", overflow="fold"), "classes")  # a path that is cut short cannot be copied
    for one in predictions:
        table.add_row(escape(printable(one.name, _LONGEST_PATH)), escape(one.words))
    Console().print(table)
