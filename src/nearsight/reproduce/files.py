"""Reading the room's own YAML files: mappings whose keys are known, with errors that say where."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearsight.untrusted.plain_yaml import plain_yaml


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file as a mapping of words to plain values."""
    try:
        content = plain_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return as_mapping(content, str(path))


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a mapping of names to values, got {value!r}")
    return value


def as_list(value: Any, where: str, kind: type | tuple[type, ...]) -> list[Any]:
    """A list that is not empty, of values of one kind."""
    if not isinstance(value, list) or not value or not all(isinstance(one, kind) for one in value):
        raise ValueError(f"{where}: expected a list of one value or more, got {value!r}")
    return value


def check_keys(given: Mapping[str, Any], where: str, *, needed: Sequence[str] = (), others: Sequence[str] = ()) -> None:
    """Every key is known, and those that are needed are there."""
    known = (*needed, *others)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")
    for key in needed:
        if key not in given:
            raise ValueError(f"{where}: {key!r} is missing")
