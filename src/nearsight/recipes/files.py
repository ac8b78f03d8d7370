"""Recipes by name and as YAML: what a person writes (some fields over a named one) and what a run freezes (all).

The reader trusts nothing: plain values only (`untrusted.plain_yaml`), and a field it does not know is an error that
names the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nearsight.recipes.foreign import off_in_files, refuse_connections
from nearsight.recipes.recipe import R, Recipe, differences, field_names
from nearsight.tasks import all_kinds, task_kind, task_of_data
from nearsight.text import typed
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import SETTINGS_BYTES
from nearsight.untrusted.plain_yaml import plain_yaml

FORMAT = 2
_NOT_FIELDS = ("recipe", "task", "format")
_RENAMED = {"init_from": "weights"}


def resolve_recipe(name: str = "", file: str | Path | None = None, flags: dict[str, Any] | None = None) -> Recipe:
    """A recipe from its three layers: named recipe < file < flags. The file may name its own recipe; a flag wins.

    Without a name it is the first recipe of the task that the file names, or that suits the data.
    """
    flags = flags or {}
    changes = read_changes(file) if file else {}
    name, task = name or str(changes.pop("recipe", "")), str(changes.pop("task", ""))
    changes.pop("recipe", None)
    if not name:
        kind = task_kind(task) if task else task_of_data(str(flags.get("data") or changes.get("data", "")))
        name = kind.default_recipe
    base = named_recipe(name)
    if task and base.task != task:
        raise ValueError(f"{file}: its task is {task}, but the recipe {name!r} is for {base.task}")
    with _mistakes_in(str(file)):
        refuse_connections(type(base), changes, flags)
    if "epochs" in flags:
        changes.pop("epochs", None)  # a file's short warm-up would stay
    recipe = apply_changes(base, _with_short_warmup(base, changes), where=str(file))
    return apply_changes(recipe, _with_short_warmup(recipe, flags), where="the command line")


def _with_short_warmup(recipe: Recipe, changes: dict[str, Any]) -> dict[str, Any]:
    """A trial of a few epochs warms up for a tenth of them, unless the changes say how long."""
    epochs = changes.get("epochs")
    if "warmup_epochs" in changes or not isinstance(epochs, int | float) or not 0 < epochs <= recipe.warmup_epochs:
        return changes
    return {**changes, "warmup_epochs": epochs / 10}


def apply_changes(recipe: R, changes: dict[str, Any], where: str) -> R:
    """``recipe`` with ``changes``; a bad value is reported with the place it came from."""
    if isinstance(changes.get("model_options"), dict):
        changes = {**changes, "model_options": {**recipe.model_options, **changes["model_options"]}}
    with _mistakes_in(where):
        _refuse_unknown(changes, field_names(type(recipe)), recipe.task)
        changed = recipe.with_changes(**changes)
    return changed


def read_changes(file: str | Path) -> dict[str, Any]:
    """The fields that a YAML file sets, plus ``recipe`` and ``task`` when it names them."""
    content = _read_mapping(file)
    # What a run froze has all fields; where a person names a few, one that the task does not read is a mistake.
    frozen = "format" not in content and len(content) > len(field_names(Recipe)) and len(_only_readers(content)) > 1
    return _updated(content) if frozen else {name: value for name, value in content.items() if name != "format"}


def freeze(recipe: Recipe) -> str:
    """YAML text with every field, for a run's folder."""
    return yaml.safe_dump({"format": FORMAT, **recipe.as_dict()}, sort_keys=False, allow_unicode=True)


def thaw(path: str | Path) -> Recipe:
    """The recipe that ``freeze`` wrote, now or in the first format. Fields that came later have their default.

    It has no leave to connect, whatever the file says.
    """
    content = _read_mapping(path)
    with _mistakes_in(path):
        content = content if "format" in content else _updated(content)
        task = str(content.pop("task", ""))
        fields = {name: value for name, value in content.items() if name != "format"}
        kind = task_kind(task).recipe
        _refuse_unknown(fields, field_names(kind), task)
        recipe = kind(**off_in_files(kind, fields))
    return recipe


def _updated(content: dict[str, Any]) -> dict[str, Any]:
    """What a file of the first format says: each had the fields of all tasks."""
    task = str(content.get("task", "classification"))
    kind: type[Recipe] = task_kind(task).recipe
    return {"task": task, **kind.updated(content)}


def _read_mapping(file: str | Path) -> dict[str, Any]:
    """What a recipe's file says: field names, each of some task, with ``recipe``, ``task`` and ``format``."""
    path = Path(file)
    try:
        stored = read_bytes(path, SETTINGS_BYTES)
    except OSError as error:
        raise ValueError(f"cannot read the recipe {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a recipe: {error}") from error
    try:
        content = plain_yaml(stored.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a plain YAML recipe: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path}: a recipe is a mapping of field names to values")
    content = {_RENAMED.get(name, name): value for name, value in content.items()}
    if content.get("format", FORMAT) != FORMAT:
        raise ValueError(f"{path} has the format {content['format']!r}; this version of nearsight reads {FORMAT}")
    every = {name for kind in all_kinds() for name in field_names(kind.recipe)}
    with _mistakes_in(path):
        if "task" in content:
            task_kind(str(content["task"]))  # first: fields of a task that is not here are not known either
        _refuse_unknown((name for name in content if name not in _NOT_FIELDS), every)
    return content


@contextmanager
def _mistakes_in(place: str | Path) -> Iterator[None]:
    """Say of a mistake where it was made: in which file, or on the command line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from error


def describe_changes(base: Recipe, recipe: Recipe) -> list[str]:
    """One line per field in which ``recipe`` differs from ``base``."""
    return [f"{name}: {old!r} → {new!r}" for name, (old, new) in differences(base, recipe).items()]


def _readers(name: str) -> list[str]:
    """The tasks whose recipes have a field."""
    return [kind.name for kind in all_kinds() if name in field_names(kind.recipe)]


def _only_readers(names: Iterable[str]) -> set[str]:
    """The tasks that alone have one of these fields."""
    readers = map(_readers, names)
    return {found[0] for found in readers if len(found) == 1}


def _refuse_unknown(names: Iterable[str], known: Iterable[str], task: str = "") -> None:
    for key in names:
        if key in known:
            continue
        if readers := _readers(key):
            raise ValueError(f"{key} is for {' and '.join(readers)}; {task} does not read it")
        near = difflib.get_close_matches(key, known, n=1)
        listed = f"{typed('train', '--help')} lists them; a model's own options go into model_options"
        raise ValueError(f"there is no field {key!r}; {f'did you mean {near[0]!r}?' if near else listed}")


def named_recipe(name: str) -> Recipe:
    """The recipe called ``name``, of whichever task."""
    every = {known: recipe for kind in all_kinds() for known, recipe in kind.recipes.items()}
    if name not in every:
        raise ValueError(f"there is no recipe {name!r}; choose one of {', '.join(every)}")
    return every[name]
