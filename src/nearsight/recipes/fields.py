"""The building blocks of a recipe: typed fields with one line of help that say whether a resume may change them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

Change = Literal["never", "override", "free"]
"""What resuming may do with a field: nothing (another experiment), change it when asked, or change it freely."""


TINY = 1e-9
"""The least of what must be above zero."""


def option(default: Any, help: str, *, change: Change = "override", choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with one line of help, the rule for resuming, and the values it accepts (any when empty)."""
    metadata = {"help": help, "change": change, "choices": choices}
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_range(owner: Any, low: float, high: float, *names: str) -> None:
    """Each named field lies in [low, high]."""
    for name in names:
        value = getattr(owner, name)
        if not low <= value <= high:
            bounds = {(0, math.inf): "at least 0", (1, math.inf): "at least 1", (TINY, math.inf): "above 0"}
            told = bounds.get((low, high), f"between {0 if low == TINY else low:g} and {high:g}")
            raise ValueError(f"{name} must be {told}, got {value!r}")


def check_choices(owner: Any) -> None:
    """Each field with a list of choices has one of them."""
    for field in dataclasses.fields(owner):
        choices = field.metadata.get("choices")
        value = getattr(owner, field.name)
        if choices and value not in choices:
            raise ValueError(f"{field.name} must be one of {', '.join(choices)}; got {value!r}")


def check_types(owner: Any) -> None:
    """Values have the type of their field's default (YAML and flags give strings where a number was meant)."""
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        kind = dict if field.default is dataclasses.MISSING else type(field.default)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(owner, field.name, float(value))
        elif isinstance(value, bool) and "off" in field.metadata.get("choices", ()):
            object.__setattr__(owner, field.name, "on" if value else "off")  # YAML takes these words for truth values
        elif not fits:
            raise ValueError(f"{field.name} must be {_said(kind)}, got {value!r}")


def _said(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a word", dict: "a mapping"}[kind]
