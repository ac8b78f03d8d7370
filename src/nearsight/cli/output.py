"""What verbs print of results, the same for every task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nearsight.reports.words import measured, weights_words
from nearsight.tasks import Evaluation, Prediction
from nearsight.text import printable

_LONGEST_PATH = 4096
_MOST_PROBLEMS = 5


def print_summary(summary: dict[str, Any], path: Path, selection: str, *, as_json: bool) -> None:
    """How a training ended."""
    from nearsight.runs.metrics_log import json_line

    if as_json:
        print(json_line({"kind": "done", "run": str(path), **summary}))
        return
    selected = summary.get("selected")
    if selected:
        value, weights = measured(selection, selected["value"]), weights_words(selected["weights"])
        print(f"selected on val: {value} at step {selected['step']} ({weights})")
    for name, value in summary.get("test", {}).items():
        print(f"test: {measured(name, value)} (weights selected on val)")
    for problem in summary.get("problems", [])[:_MOST_PROBLEMS]:
        print(f"unreadable image: {printable(problem)}")
    print(f"run: {printable(str(path), _LONGEST_PATH)}")


def print_evaluation(found: Evaluation, *, as_json: bool) -> None:
    """Measured values, and what there is to say about the images they were measured on."""
    from nearsight.runs.metrics_log import json_line

    if as_json:
        classes = {"classes": found.per_class} if found.per_class else {}
        notes = list(found.notes)
        print(json_line({"data": found.origin, "split": found.split, **found.values, **classes, "notes": notes}))
        return
    print(found.origin)
    for name, value in found.values.items():
        print(f"{found.split}: {measured(name, value)}")
    for label, values in found.per_class.items():
        print(f"{printable(label)}: {', '.join(measured(name, value) for name, value in values.items())}")
    for note in found.notes:
        print(printable(note))


def print_predictions(predictions: Iterable[Prediction], *, as_json: bool) -> bool:
    """One JSON object per picture as they come, or a table. Whether all pictures could be read."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from nearsight.runs.metrics_log import json_line

    columns = (Column(name, overflow="fold") for name in ("picture", "prediction"))  # a path cut short is of no use
    table = Table(*columns)
    readable = True
    for one in predictions:
        readable = readable and not one.problem
        if as_json:
            print(json_line(one.record), flush=True)
        else:
            table.add_row(escape(printable(one.name, _LONGEST_PATH)), escape(one.words))
    if not as_json:
        Console().print(table)
    return readable
