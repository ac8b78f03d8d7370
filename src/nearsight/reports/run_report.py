"""``report.html`` of a finished run: its result and curves, the task's own sections, its files and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearsight.recipes.recipe import Recipe
from nearsight.reports import plots
from nearsight.reports.page import Page, Picture, page_html, picture_file
from nearsight.reports.words import measured, model_words, weights_words
from nearsight.runs.atomic_files import disk_errors, replace
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DATA, DESCRIPTIONS, ENVIRONMENT, NOT_READ, REPORT
from nearsight.text import value_words, without_home

_CURVES = (
    "Loss on training batches (augmented, so that it may lie above the loss on val), the measure that selects the "
    "weights, and the learning rate, over epochs."
)


def write_report(
    folder: RunFolder, recipe: Recipe, summary: dict[str, Any], pages: Sequence[Page], selection: str
) -> Path:
    """Write ``report.html`` and each picture as a PNG of its own; ``results.png`` has the curves."""
    records = folder.metrics()
    not_read = (folder.read_json(DATA) or {}).get(NOT_READ, {})
    results = Picture("Results", plots.curves(records, selection), _CURVES)
    settings = [(name, without_home(value_words(value))) for name, value in recipe.as_dict().items()]
    environment = folder.read_json(ENVIRONMENT) or {}
    all_pages = [
        Page("Result", table=(*_overview(recipe, summary, selection), *_left_out(not_read)), pictures=(results,)),
        *pages,
        Page("Files of this run", "They lie beside this page.", links=run_files(folder.path)),
        Page("Settings", table=tuple(settings)),
        Page("Made with", table=_flat(environment)),
    ]
    with disk_errors("writing the report"):
        for page in all_pages:
            for picture in page.pictures:
                replace(folder.path / picture_file(picture.name), picture.content)
        path = folder.path / REPORT
        replace(
            path,
            page_html(f"{model_words(recipe)} on {without_home(recipe.data)}", all_pages).encode(
                errors="backslashreplace"
            ),
        )
    return path


def run_files(run: Path, prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Links to the files that a run has, each with what it holds."""
    return tuple((prefix + name, what) for name, what in DESCRIPTIONS.items() if (run / name).exists())


def _overview(recipe: Recipe, summary: dict[str, Any], selection: str) -> tuple[tuple[str, str], ...]:
    rows = [("model", model_words(recipe)), ("parameters", f"{summary['parameters']:,}")]
    rows.append(("data", without_home(recipe.data)))
    selected = summary.get("selected")
    if selected:
        rows.append(("selected on val", measured(selection, selected["value"])))
        rows.append(("selected at", f"step {selected['step']:,}, {weights_words(selected['weights'])}"))
    rows += [("test", measured(name, value)) for name, value in summary.get("test", {}).items()]
    rows += [("in short", remark) for remark in summary.get("remarks", [])]
    rows.append(("updates", f"{summary['steps']:,}, {summary['skipped_steps']} skipped"))
    rows += [("time", f"{summary['seconds']:,.0f} s"), ("seed", str(recipe.seed))]
    rows += [("problem with data", problem) for problem in summary.get("problems", [])[:20]]
    return tuple(rows)


def _left_out(not_read: dict[str, int]) -> list[tuple[str, str]]:
    return [("files not read", f"{count} {reason}") for reason, count in not_read.items()]


def _flat(record: dict[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            rows.extend(_flat(value, f"{prefix}{name}."))
        else:
            rows.append((prefix + name, str(value)))
    return tuple(rows)
