"""How text from elsewhere and values are shown. Imports nothing of nearsight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LONGEST_PATH = 4096  # the `limit` with which `printable` shows paths whole

_program = "nearsight"


def name_program(words: str) -> None:
    """Say what a person types to start this program, such as `python -m mytask`, for usage and hints."""
    global _program
    _program = words


def typed(*words: object) -> str:
    """What to type for this: `typed("resume", run)` is `nearsight resume runs/one`; without words the program."""
    return " ".join(map(str, (_program, *words)))


def one_line(text: str) -> str:
    """Text that stays on one line and moves no cursor: what cannot be printed is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable(text: str, limit: int = 200) -> str:
    """As `one_line`, of bounded length: names from files may hold anything."""
    shown = one_line(text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def value_words(value: Any) -> str:
    """A setting as a person would type it; nothing for an empty one."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={value_words(inner)}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def without_home(path: str | Path) -> str:
    """``path`` with the home folder written as ``~``, for files that people share."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home) :] if home != "/" and (text == home or text.startswith(home + "/")) else text
