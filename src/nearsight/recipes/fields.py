"""The building blocks of a recipe: typed fields with one line of help, bounds, and the rule for resuming."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from nearsight.untrusted.limits import LARGEST_NUMBER, MODEL_NUMBER

Change = Literal["never", "override", "free"]
"""What resuming may do with a field: nothing (another experiment), change it when asked, or change it freely."""

INF = math.inf
TINY = 1e-9
"""The least of what must be above zero."""


def option(
    default: Any,
    help: str,
    *,
    change: Change = "override",
    choices: tuple[str, ...] = (),
    low: float = -INF,
    high: float = INF,
    compared: bool = False,
    connects: bool = False,
) -> Any:
    """A dataclass field with one line of help, the rule for resuming, and the values it accepts (any when empty).

    Runs that differ in a field are two settings, unless resuming may change it freely; ``compared`` is for those of the
    latter that change results nevertheless. With ``connects`` it is leave to use the network: see `recipes.foreign`.
    """
    compared = compared or change != "free"
    bounds = {"choices": choices, "low": low, "high": high}
    metadata = {"help": help, "change": change, "compared": compared, "connects": connects, **bounds}
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_fields(owner: Any) -> None:
    """Each field has its default's type, one of its choices, and lies in its bounds."""
    fields = dataclasses.fields(owner)
    for field in fields:
        _check_type(owner, field)
    for field in fields:
        value, choices = getattr(owner, field.name), field.metadata["choices"]
        if choices and value not in choices:
            raise ValueError(f"{field.name} must be one of {', '.join(choices)}; got {value!r}")
        if isinstance(value, int | float):
            _check_bounds(field.name, value, field.metadata["low"], field.metadata["high"])
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name} must be a finite number, got {value!r}")


def _check_type(owner: Any, field: dataclasses.Field) -> None:
    """YAML and options give strings where a number was meant."""
    value = getattr(owner, field.name)
    kind = dict if field.default is dataclasses.MISSING else type(field.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        object.__setattr__(owner, field.name, float(value) if abs(value) < 2**1000 else INF if value > 0 else -INF)
    elif isinstance(value, bool) and "off" in field.metadata["choices"]:
        object.__setattr__(owner, field.name, "on" if value else "off")  # YAML takes these words for truth values
    elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", dict: "a mapping"}
        raise ValueError(f"{field.name} must be {names[kind]}, got {value!r}")


def _check_bounds(name: str, value: float, low: float, high: float) -> None:
    if LARGEST_NUMBER < abs(value) < INF and high == INF:
        raise ValueError(f"{name} must be at most {LARGEST_NUMBER:g}, got {_shortly(value)}")
    if (low, high) != (-INF, INF) and not low <= value <= high:
        known = {(0, INF): "at least 0", (1, INF): "at least 1", (TINY, INF): "above 0"}
        bounds = known.get((low, high), f"between {0 if low == TINY else low:g} and {high:g}")
        raise ValueError(f"{name} must be {bounds}, got {_shortly(value)}")


def check_numbers(name: str, value: Any) -> None:
    """Every number within a setting is finite and of a size that some model could mean."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_numbers(f"{name}: {key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_numbers(name, inner)
    elif isinstance(value, int | float) and not abs(value) <= MODEL_NUMBER:
        raise ValueError(f"{name} must be a number of at most {MODEL_NUMBER:,}, got {_shortly(value)}")


def _shortly(value: float) -> str:
    """A number in a message; Python refuses to write out whole ones of thousands of digits."""
    if isinstance(value, float) or abs(value) < 10**15:
        return repr(value)
    return f"a whole number of {value.bit_length()} bits"
