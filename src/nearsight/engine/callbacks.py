"""Callbacks receive the records and notes of a run; none of them can stop it. Progress displays are here.

A live line on a terminal, plain lines elsewhere; JSON lines or warnings only on request.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from nearsight.reports.words import measured
from nearsight.runs.metrics_log import json_line
from nearsight.text import one_line

_PLAIN_SECONDS = 10.0
_MOST_MEASURES = 3


class Callback(Protocol):
    """Records are the lines of metrics.jsonl; notes are sentences for the user."""

    def record(self, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class CallbackList:
    """Calls all of them; one that fails is dropped with a warning and the run goes on."""

    def __init__(self, members: Iterable[Callback] = ()) -> None:
        self._members = list(members)

    def record(self, record: dict[str, Any]) -> None:
        self._call("record", record)

    def note(self, text: str) -> None:
        self._call("note", text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        for member in list(self._members):
            try:
                getattr(member, method)(*arguments)
            except Exception as error:
                self._members.remove(member)
                warnings.warn(f"{type(member).__name__} failed and is no longer called: {error}", stacklevel=3)


def make_progress(total_steps: int, style: str = "auto") -> Callback:
    """``auto`` is live on a terminal and plain elsewhere; ``plain``, ``json`` and ``quiet`` choose one."""
    if style == "json":
        return JsonProgress(sys.stdout)
    if style == "quiet":
        return QuietProgress(sys.stderr)
    if style == "auto" and sys.stdout.isatty():
        return LiveProgress(total_steps)
    return PlainProgress(total_steps, sys.stdout)


class _Eta:
    """Seconds to the end, from the speed of this process alone, not of those before a resume."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._first: tuple[int, float] | None = None

    def __call__(self, step: int) -> float | None:
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        done, seconds = step - self._first[0], now - self._first[1]
        return seconds / done * (self.total_steps - step) if done > 0 else None


def describe_training(record: dict[str, Any], total_steps: int, eta: float | None) -> str:
    """One training record as one line."""
    parts = [
        f"epoch {record['epoch']:.1f}",
        f"step {record['step']}/{total_steps}",
        f"loss {float(record['loss']):.4f}",
        f"lr {record['lr']:.2e}",
        f"{record['images_per_second']:.0f} images/s",
        f"data wait {100 * record['data_wait']:.0f} %",
    ]
    if "memory" in record:
        parts.append(f"{record['memory'] / 2**30:.1f} GiB")
    if record["skipped"]:
        parts.append(f"{record['skipped']} skipped")
    if eta is not None:
        parts.append(f"ETA {timedelta(seconds=round(eta))}")
    return "  ".join(parts)


def describe_evaluation(record: dict[str, Any]) -> str:
    """One evaluation as one line: the first measures of the weights and of their average; metrics.jsonl has all."""
    values = {name: value for name, value in record.items() if isinstance(value, float) and name != "epoch"}
    parts = [f"epoch {record['epoch']:.1f}"]
    for prefix, whose in (("val_", "val"), ("ema_val_", "averaged val")):
        chosen = [(name, value) for name, value in values.items() if name.startswith(prefix)][:_MOST_MEASURES]
        parts += [f"{whose} {measured(name.removeprefix(prefix), value)}" for name, value in chosen]
    return "  ".join(parts)


class _Lines:
    """Notes as lines of a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def note(self, text: str) -> None:
        print(one_line(text), file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()


class PlainProgress(_Lines):
    """Lines for logs: each evaluation, and training every ten seconds."""

    def __init__(self, total_steps: int, stream: TextIO) -> None:
        super().__init__(stream)
        self._total, self._eta = total_steps, _Eta(total_steps)
        self._last = float("-inf")

    def record(self, record: dict[str, Any]) -> None:
        if record["kind"] == "eval":
            self.note(describe_evaluation(record))
            return
        eta = self._eta(record["step"])
        if time.monotonic() - self._last > _PLAIN_SECONDS:
            self._last = time.monotonic()
            self.note(describe_training(record, self._total, eta))


class LiveProgress:
    """One bar that stays at the bottom; evaluations and notes scroll by above it."""

    def __init__(self, total_steps: int) -> None:
        self._console = Console()
        self._total, self._eta = total_steps, _Eta(total_steps)
        self._bar = Progress(BarColumn(bar_width=24), TextColumn("{task.description}"), console=self._console)
        self._task = self._bar.add_task("starting", total=total_steps)
        self._bar.start()

    def record(self, record: dict[str, Any]) -> None:
        if record["kind"] == "eval":
            self.note(describe_evaluation(record))
        else:
            text = describe_training(record, self._total, self._eta(record["step"]))
            self._bar.update(self._task, completed=record["step"], description=text)

    def note(self, text: str) -> None:
        self._console.print(one_line(text), markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class JsonProgress(_Lines):
    """Every record and note as a JSON line."""

    def record(self, record: dict[str, Any]) -> None:
        print(json_line(record), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        self.record({"kind": "note", "text": text})


class QuietProgress(_Lines):
    """Warnings only."""

    def record(self, record: dict[str, Any]) -> None:
        return

    def note(self, text: str) -> None:
        if text.startswith("warning"):
            super().note(text)
