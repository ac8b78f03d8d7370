"""Command-line options made from dataclass fields: a task's recipe, and what its eval and predict take."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from nearsight.text import value_words

_NOT_OPTIONS = ("data", "task")
"""Fields that a verb has by other means."""
_AUTO_BATCH = (
    "; auto takes a smaller batch where there are fewer images, and halves the micro-batch when memory runs out"
)


def option_class(*sources: tuple[type, Any]) -> Any:
    """A parameter type with an option for every field of the (dataclass, instance) pairs.

    Each option that is not given is None; help shows the value that the field has in the instance, if there is one.
    """
    options = [_option(field, owner, values) for owner, values in sources for field in _fields(owner)]
    made = dataclasses.make_dataclass("Options", options, kw_only=True)
    made.__module__ = __name__  # made dynamically, it claims to be a built-in type, which cyclopts does not unfold
    return made


def given_options(options: Any) -> dict[str, Any]:
    """The fields that the command line set; ``--batch auto`` keeps the recipe's batch where it fits."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if given.get("batch") == "auto":
        del given["batch"]
        given["batch_auto"] = True
    return given


def option_names(owners: Iterable[type]) -> set[str]:
    """What the options of these dataclasses are called, without dashes in front."""
    return {field.name.replace("_", "-") for owner in owners for field in _fields(owner)}


def switch_names(owners: Iterable[type]) -> set[str]:
    """Those that take no value, in both of their forms."""
    switches = [field.name.replace("_", "-") for o in owners for field in _fields(o) if isinstance(field.default, bool)]
    return {*switches, *(f"no-{name}" for name in switches)}


def _fields(owner: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(owner) if field.name not in _NOT_OPTIONS]


def _option(field: dataclasses.Field, owner: type, values: Any) -> tuple[str, Any, Any]:
    help_text = field.metadata["help"] + (_AUTO_BATCH if field.name == "batch" else "")
    if field.metadata["choices"]:
        help_text += f" ({', '.join(field.metadata['choices'])})"
    default = "" if values is None else value_words(getattr(values, field.name))
    parameter = Parameter(
        help=help_text, group=_group_of(field.name, owner), show_default=(lambda _: default) if default else False
    )
    return field.name, Annotated[_type_of(field), parameter], dataclasses.field(default=None)


def _type_of(field: dataclasses.Field) -> Any:
    if field.name == "batch":
        return int | Literal["auto"] | None
    # A mapping is read from the words before they are parsed; here it is only told of.
    return (str if field.default is dataclasses.MISSING else type(field.default)) | None


def _group_of(name: str, owner: type) -> Group:
    """Options are listed under the sentence that describes the class they come from."""
    parts = [part for part in owner.__mro__ if name in inspect.get_annotations(part)]
    order = [part.__name__ for part in reversed(owner.__mro__)].index(parts[0].__name__)
    return Group((parts[0].__doc__ or "").split("\n")[0].rstrip("."), sort_key=order)
