"""`nearsight train` and `nearsight resume`, for every task."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nearsight.cli.options import Override, Raw, Run, Show, Words, call_verb, read_words
from nearsight.reports.words import measured, weights_words
from nearsight.runs.layout import CONFIG, WANDB_ID
from nearsight.runs.metrics_log import json_line
from nearsight.tasks import TaskKind, all_kinds, task_kind, task_names, task_of_data
from nearsight.text import LONGEST_PATH, printable, typed

if TYPE_CHECKING:
    from nearsight.engine.callbacks import Callback
    from nearsight.engine.trainer import Trainer
    from nearsight.recipes.recipe import Recipe

_MOST_PROBLEMS, _LONGEST_REMARK = 5, 1000
_TRAIN = """Train a model on DATA, or go on with the run in --run.

Settings come from a named recipe, then from --config, then from the options below. The defaults shown are those of the
recipe {recipe}; `{recipes}` shows every recipe's. A run can be killed at any instant: `{resume}`
goes on, or the same command and --run.
"""


def train(*words: Raw) -> int:
    """Train a model on a dataset."""
    read = read_words(words)
    kind = _kind_to_train(read)
    others = [f"`{typed('train', '--task', other.name, '--help')}`" for other in all_kinds() if other is not kind]
    help = _TRAIN.format(recipe=kind.default_recipe, recipes=typed("recipes"), resume=typed("resume", "RUN"))
    if not read.positional:
        help += f"\nThese are the options for {kind.name}; {' or '.join(others)} shows others."
    shown = [kind.recipes[kind.default_recipe]]
    return call_verb("train", "DATA", _train_verb(kind, read), read, [kind], "recipe", shown, help)


def resume(*words: Raw) -> int:
    """Go on with a run that was stopped, killed or interrupted."""
    read = read_words(words)
    recipe = _recipe_of_run(read.positional) if read.positional else None
    kind = all_kinds()[0] if recipe is None else task_kind(recipe.task)

    def go_on(run: Run, /, *, override: Override = False, show: Show = "auto", options: Any = None) -> int:
        """Go on with a run that was stopped, from its last checkpoint, to the same result."""
        from nearsight.recipes.files import apply_changes

        assert recipe is not None
        changed = apply_changes(recipe, read.changes(options), where="the command line")
        return train_and_tell(changed, run, show=show, override=override)

    return call_verb("resume", "RUN", go_on, read, [kind], "recipe", [recipe])


def _kind_to_train(words: Words) -> TaskKind:
    """The task that is named; that of the named recipe, of the file or of the run; else that which suits the data."""
    from nearsight.recipes.files import read_changes

    stated = read_changes(words.values["config"]) if words.values.get("config") else {}
    task = words.values.get("task") or stated.get("task")
    if task:
        return task_kind(str(task))
    recipe = words.values.get("recipe") or stated.get("recipe")
    suited = task_of_data(words.positional or str(stated.get("data", "")))

    def unless_for_another(kind: TaskKind, named: str, remedy: str) -> TaskKind:
        if suited.name in (kind.name, task_names()[0]):
            return kind
        raise ValueError(f"{words.positional} is for {suited.name}, {named} for {kind.name}; {remedy}")

    for kind in all_kinds():
        if recipe in kind.recipes:
            remedy = f"leave the recipe out, or take {' or '.join(suited.recipes)}"
            return unless_for_another(kind, f"recipe {recipe}", remedy)
    run = words.values.get("run")
    if run and (Path(run) / CONFIG).is_file():
        return unless_for_another(task_kind(_recipe_of_run(run).task), f"the run {run}", "choose another --run")
    return suited


def _recipe_of_run(run: str) -> "Recipe":
    from nearsight.runs.folder import RunFolder  # not for help: it imports torch

    return RunFolder(run).recipe()


def _train_verb(kind: TaskKind, words: Words) -> Any:
    data_help = "What to train on. " + " ".join(f"For {one.name}: {one.data}." for one in all_kinds())

    def train(
        data: Annotated[str, Parameter(show_default=False, help=data_help)] = "",
        /,
        *,
        recipe: Annotated[str, Parameter(show_default=lambda _: kind.default_recipe)] = "",
        config: Path | None = None,
        task: Annotated[str, Parameter(show_default=False)] = "",
        run: Path | None = None,
        override: Override = False,
        show: Show = "auto",
        options: Any = None,
    ) -> int:
        """Train on the data, with the settings that the command line gives.

        Parameters
        ----------
        recipe
            Named recipe to start from; the verb `recipes` shows them side by side.
        config
            YAML file with any of the fields below.
        task
            Name of the task; by default what suits DATA.
        run
            Folder of the run; by default a new one under runs/.
        """
        from nearsight.recipes.files import read_changes, resolve_recipe

        changes = words.changes(options)
        if data:
            changes["data"] = data
        stated = read_changes(config) if config else {}
        base = recipe or str(stated.get("recipe") or kind.default_recipe)
        resolved = resolve_recipe(base, config, changes)
        if resolved.task != kind.name:
            raise ValueError(f"recipe {base!r} is for {resolved.task}, not {kind.name}; {typed('recipes')} lists all")
        path = run or _new_run_path(resolved, base)
        fit_batch = "batch" not in {**stated, **changes}
        return train_and_tell(resolved, path, show=show, override=override, base=base, fit_batch=fit_batch)

    return train


def train_and_tell(
    recipe: "Recipe",
    path: Path,
    *,
    show: str = "auto",
    override: bool = False,
    base: str = "",
    fit_batch: bool = False,
) -> int:
    """Train, report progress, and print the summary. With `base`, tell what differs from that recipe."""
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.trackers import check_trackers, make_trackers
    from nearsight.engine.training import train as train_run
    from nearsight.recipes.files import describe_changes, named_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder

    check_trackers(recipe)
    main = False  # only the main process has callbacks

    def callbacks(trainer: "Trainer") -> "list[Callback]":
        nonlocal main
        main = True
        used = trainer.recipe  # its batch may be another, that suits the data
        progress = make_progress(trainer.total_steps, style=show)
        if base:
            progress.note(f"{kind.help}, recipe {base}")
            for line in describe_changes(named_recipe(base), used):
                progress.note(f"{base}: {line}")
        scaled = f"{used.lr:g} × {used.batch}/{used.lr_batch}" if used.lr_batch else f"{used.lr:g}"
        progress.note(f"run: {path}  device: {trainer.device}  learning rate: {scaled} = {used.peak_lr:g}")
        if (path / WANDB_ID).exists() and not used.wandb:
            progress.note("this run has been logged to Weights & Biases; without --wandb it is not from here on")
        return [progress, *make_trackers(used, path)]

    kind, folder = task_kind(recipe.task), RunFolder(path)
    with reported():
        summary = train_run(recipe, folder, callbacks=callbacks, override=override, fit_batch=fit_batch)
    if main and show != "quiet":
        _print_summary(summary, path, recipe.selection, as_json=show == "json")
    return 0


def _new_run_path(recipe: "Recipe", name: str) -> Path:
    from torch.distributed import is_torchelastic_launched

    from nearsight.runs.folder import free_run_path

    if is_torchelastic_launched():
        raise ValueError("under torchrun the run needs a name that restarts can find: add --run runs/NAME")
    stem = "".join(char if char.isalnum() else "-" for char in f"{Path(recipe.data).stem}-{recipe.model}")
    return free_run_path(Path("runs"), stem.strip("-") or name or "run")


def _print_summary(summary: dict[str, Any], path: Path, selection: str, *, as_json: bool) -> None:
    """How a training ended."""
    if as_json:
        print(json_line({"kind": "done", "run": str(path), **summary}))
        return
    selected = summary.get("selected")
    if selected:
        value, weights = measured(selection, selected["value"]), weights_words(selected["weights"])
        print(f"selected on val: {value} at step {selected['step']} ({weights})")
    for name, value in summary.get("test", {}).items():
        print(f"test: {measured(name, value)} (weights selected on val)")
    for remark in summary.get("remarks", []):
        print(printable(remark, _LONGEST_REMARK))
    for problem in summary.get("problems", [])[:_MOST_PROBLEMS]:
        print(f"unreadable image: {printable(problem)}")
    print(f"run: {printable(str(path), LONGEST_PATH)}")
