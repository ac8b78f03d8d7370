"""Who hears of a run while it goes on: the terminal, TensorBoard, W&B. None of them can stop it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Protocol


class Listener(Protocol):
    """Records are what goes into metrics.jsonl; notes are sentences for a person."""

    def record(self, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Listeners:
    """Passes everything on; one that fails is dropped with a warning and the run goes on."""

    def __init__(self, members: Iterable[Listener] = ()) -> None:
        self._members = list(members)

    def record(self, record: dict[str, Any]) -> None:
        self._tell("record", record)

    def note(self, text: str) -> None:
        self._tell("note", text)

    def close(self) -> None:
        self._tell("close")

    def _tell(self, what: str, *arguments: Any) -> None:
        for member in list(self._members):
            try:
                getattr(member, what)(*arguments)
            except Exception as error:
                self._members.remove(member)
                warnings.warn(f"{type(member).__name__} failed and is left out from here on: {error}", stacklevel=3)
