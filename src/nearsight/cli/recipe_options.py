"""A command-line option for every field of a recipe, made from the fields themselves. Imports no torch."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from nearsight.classification.recipe import ClassificationRecipe as Recipe
from nearsight.classification.recipes import CLASSIFICATION_RECIPES
from nearsight.recipes.files import plain_yaml
from nearsight.text import value_words

DEFAULT_RECIPE = "small"
"""What settings start from when no recipe is named."""
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


def _option(field: dataclasses.Field, defaults: Recipe | None) -> tuple[str, Any, Any]:
    help_text = field.metadata["help"]
    if field.metadata["choices"]:
        help_text += f" ({', '.join(field.metadata['choices'])})"
    if field.name == "batch":
        help_text += (
            "; auto takes a smaller batch where there are fewer images, and halves the micro-batch when memory runs out"
        )
    # An option that is not given is None: what it will be is up to the recipe, and only told here.
    default = "" if defaults is None else value_words(getattr(defaults, field.name))
    parameter = Parameter(
        help=help_text, group=_group_of(field.name), show_default=(lambda _: default) if default else False
    )
    return field.name, Annotated[_type_of(field), parameter], dataclasses.field(default=None)


def _flags(name: str, defaults: Recipe | None) -> type:
    options = [_option(field, defaults) for field in dataclasses.fields(Recipe) if field.name not in _POSITIONAL]
    made = dataclasses.make_dataclass(name, options, kw_only=True)
    made.__module__ = __name__  # made dynamically, it claims to be a built-in type, which cyclopts does not unfold
    return made


RecipeFlags = _flags("RecipeFlags", CLASSIFICATION_RECIPES[DEFAULT_RECIPE])
"""Options over a named recipe: help shows the values of the one that is taken when none is named."""
ChangeFlags = _flags("ChangeFlags", None)
"""Options over a run's own settings."""


def given_flags(flags: Any) -> dict[str, Any]:
    """The fields that the command line set; ``--batch auto`` keeps the recipe's batch where it fits."""
    given = {name: value for name, value in vars(flags).items() if value is not None}
    if "model_options" in given:
        given["model_options"] = {name: _value(name, text) for name, text in given["model_options"].items()}
    if given.get("batch") == "auto":
        del given["batch"]
        given["batch_auto"] = True
    return given


def _value(name: str, text: str) -> Any:
    try:
        return plain_yaml(text)
    except ValueError as error:
        raise ValueError(f"--model-options.{name} {text!r} is not a plain value: {error}") from error
