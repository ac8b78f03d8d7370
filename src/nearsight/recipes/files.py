"""Recipes as YAML: what a person writes (a few fields over a named recipe) and what a run freezes (every field).

The reader trusts nothing: plain values only, at most one megabyte, no aliases (they can expand without bound), and a
field it does not know is an error that names the line and the nearest name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from nearsight.recipes.named import named_recipe
from nearsight.recipes.recipe import Recipe, differences

_LARGEST_FILE = 1_000_000
FIELDS = tuple(field.name for field in dataclasses.fields(Recipe))


class _PlainLoader(yaml.SafeLoader):
    """Scalars, lists and mappings with each key once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: aliases are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if str(key.value) in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {key.value!r} is there twice")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 3e-4 for a word because it has no point.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def plain_yaml(text: str) -> Any:
    """Text as plain values; a ``ValueError`` says in one line what else it is."""
    try:
        return _PlainLoader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that does not exist is a ValueError
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            raise ValueError(f"line {error.problem_mark.line + 1}: {error.problem}") from error
        raise ValueError(" ".join(str(error).split())) from error


def resolve_recipe(name: str = "", file: str | Path | None = None, flags: dict[str, Any] | None = None) -> Recipe:
    """A recipe from its three layers: named recipe < file < flags. The file may name its own recipe; a flag wins."""
    changes = read_changes(file) if file else {}
    base = named_recipe(name or str(changes.pop("recipe", "")) or "small")
    changes.pop("recipe", None)
    recipe = apply_changes(base, changes, where=str(file))
    return apply_changes(recipe, _with_short_warmup(recipe, flags or {}), where="the command line")


def _with_short_warmup(recipe: Recipe, flags: dict[str, Any]) -> dict[str, Any]:
    """A trial of a few epochs warms up for a tenth of them, unless the flags say how long; the change is told."""
    epochs = flags.get("epochs")
    if "warmup_epochs" in flags or not isinstance(epochs, int | float) or not 0 < epochs <= recipe.warmup_epochs:
        return flags
    return {**flags, "warmup_epochs": epochs / 10}


def apply_changes(recipe: Recipe, changes: dict[str, Any], where: str) -> Recipe:
    """``recipe`` with ``changes``; a bad value is reported with the place it came from."""
    _refuse_unknown(changes, where)
    if isinstance(changes.get("model_options"), dict):
        changes = {**changes, "model_options": {**recipe.model_options, **changes["model_options"]}}
    try:
        return recipe.with_changes(**changes)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def read_changes(file: str | Path) -> dict[str, Any]:
    """The fields a YAML file sets, plus ``recipe`` when it names one."""
    path = Path(file)
    try:
        size = path.stat().st_size
        stored = path.read_bytes() if size <= _LARGEST_FILE else b""
    except OSError as error:
        raise ValueError(f"cannot read the recipe {path}: {error.strerror}") from error
    if size > _LARGEST_FILE:
        raise ValueError(f"{path} has {size:,} bytes; a recipe has at most {_LARGEST_FILE:,}")
    try:
        content = plain_yaml(stored.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a plain YAML recipe: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path}: a recipe is a mapping of field names to values")
    _refuse_unknown({key: value for key, value in content.items() if key != "recipe"}, str(path))
    return content


def freeze(recipe: Recipe) -> str:
    """YAML text with every field, for a run's folder."""
    return yaml.safe_dump(recipe.as_dict(), sort_keys=False, allow_unicode=True)


def thaw(path: str | Path) -> Recipe:
    """The recipe that ``freeze`` wrote. Fields that came later have their default."""
    changes = read_changes(path)
    try:
        return Recipe(**changes)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def describe_changes(base: Recipe, recipe: Recipe) -> list[str]:
    """One line per field in which ``recipe`` differs from ``base``."""
    return [f"{name}: {old!r} → {new!r}" for name, (old, new) in differences(base, recipe).items()]


def _refuse_unknown(changes: dict[str, Any], where: str) -> None:
    for key in changes:
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            listed = "nearsight train --help lists them; a model's own options go into model_options"
            hint = f"did you mean {near[0]!r}?" if near else listed
            raise ValueError(f"{where}: there is no field {key!r}; {hint}")
