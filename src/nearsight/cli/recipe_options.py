"""A command-line option for every field of a recipe, made from the fields themselves. Imports no torch."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, Literal

import yaml
from cyclopts import Group, Parameter

from nearsight.train.recipe import Recipe

_POSITIONAL = ("data",)


def _group_of(name: str) -> Group:
    """Options are listed under the sentence that describes their part of the recipe."""
    owner = next(part for part in Recipe.__mro__[1:] if name in inspect.get_annotations(part))
    order = [part.__name__ for part in reversed(Recipe.__mro__)].index(owner.__name__)
    return Group((owner.__doc__ or "").split("\n")[0].rstrip("."), sort_key=order)


def _type_of(field: dataclasses.Field) -> Any:
    if field.name == "batch":
        return int | Literal["auto"] | None
    if field.default is dataclasses.MISSING:
        return dict[str, str] | None  # read as YAML below: 0.25 is a number, conv a word, [3, 4] a list
    return type(field.default) | None


def _option(field: dataclasses.Field) -> tuple[str, Any, Any]:
    help_text = field.metadata["help"]
    if field.metadata["choices"]:
        help_text += f" ({', '.join(field.metadata['choices'])})"
    if field.name == "batch":
        help_text += "; auto halves the micro-batch when memory runs out"
    parameter = Parameter(help=help_text, group=_group_of(field.name), show_default=False)
    return field.name, Annotated[_type_of(field), parameter], dataclasses.field(default=None)


RecipeFlags = dataclasses.make_dataclass(
    "RecipeFlags", [_option(f) for f in dataclasses.fields(Recipe) if f.name not in _POSITIONAL], kw_only=True
)
RecipeFlags.__module__ = __name__  # made dynamically, it claims to be a built-in type, which cyclopts does not unfold


def given_flags(flags: Any) -> dict[str, Any]:
    """The fields that the command line set; ``--batch auto`` keeps the batch and lets the micro-batch shrink."""
    given = {name: value for name, value in vars(flags).items() if value is not None}
    if "model_options" in given:
        given["model_options"] = {name: yaml.safe_load(value) for name, value in given["model_options"].items()}
    if given.get("batch") == "auto":
        del given["batch"]
        given["batch_auto"] = True
    return given
