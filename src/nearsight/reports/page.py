"""One self-contained page about a finished run: nothing is loaded from anywhere, every name is escaped."""

from __future__ import annotations

import base64
import html
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nearsight.engine.task import Page, Picture
from nearsight.recipes.recipe import Recipe
from nearsight.reports import plots
from nearsight.reports.words import measured, model_words, weights_words
from nearsight.runs.durable import disk_errors, replace
from nearsight.runs.environment import without_home
from nearsight.runs.folder import REPORT, RunFolder
from nearsight.text import value_words

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
img { max-width: 100%; display: block } figure { margin: 1rem 0 } figcaption { color: #555 }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
"""
_FILES = {
    "config.yaml": "every setting",
    "metrics.jsonl": "losses, evaluations, gates and nonlocality, line by line",
    "done.json": "how the run ended",
    "env.json": "versions and hardware",
    "data.json": "fingerprints of the data",
    "classes.txt": "names of the classes",
    "categories.json": "names and numbers of the classes",
    "train_images.txt": "the training images that were kept",
    "checkpoints": "weights",
}
_CURVES = (
    "Loss on training batches (augmented, so that it may lie above the loss on val), the measure that selects the "
    "weights, and the learning rate, over epochs."
)
# Nothing but inline pictures and this style may be used, whatever a class name tries.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    folder: RunFolder, recipe: Recipe, summary: dict[str, Any], pages: Sequence[Page], selection: str
) -> Path:
    """Write ``report.html`` and each picture as a PNG of its own; ``results.png`` has the curves."""
    records = folder.metrics()
    results = Picture("Results", plots.curves(records, selection), _CURVES)
    settings = [(name, without_home(value_words(value))) for name, value in recipe.as_dict().items()]
    environment = folder.read_json("env.json") or {}
    all_pages = [
        Page("Result", table=_overview(recipe, summary, selection), pictures=(results,)),
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
    return tuple((prefix + name, what) for name, what in _FILES.items() if (run / name).exists())


def picture_file(name: str) -> str:
    """The file that the picture called ``name`` is kept in."""
    return (re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "picture") + ".png"


def page_html(title: str, pages: Iterable[Page]) -> str:
    """The sections as one HTML document."""
    body = "\n".join(_section(page) for page in pages)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _section(page: Page) -> str:
    parts = [f"<section><h2>{html.escape(page.title)}</h2>"]
    if page.text:
        parts.append(f"<p>{html.escape(page.text)}</p>")
    if page.table:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in page.table
        )
        parts.append(f"<table>{rows}</table>")
    for picture in page.pictures:
        data = base64.b64encode(picture.content).decode()
        label, caption = html.escape(picture.name), html.escape(picture.caption)
        image = f'<img alt="{label}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure>{image}<figcaption><b>{label}.</b> {caption}</figcaption></figure>")
    if page.links:
        parts.append("<ul>" + "".join(_link(path, what) for path, what in page.links) + "</ul>")
    return "\n".join([*parts, "</section>"])


def _link(path: str, what: str) -> str:
    # A quoted path has no colon, and therefore no scheme: it can only lead to a file beside the page.
    return f'<li><a href="{urllib.parse.quote(path)}">{html.escape(path)}</a>: {html.escape(what)}</li>'


def _overview(recipe: Recipe, summary: dict[str, Any], selection: str) -> tuple[tuple[str, str], ...]:
    rows = [("model", model_words(recipe)), ("parameters", f"{summary['parameters']:,}")]
    rows.append(("data", without_home(recipe.data)))
    selected = summary.get("selected")
    if selected:
        rows.append(("selected on val", measured(selection, selected["value"])))
        rows.append(("selected at", f"step {selected['step']:,}, {weights_words(selected['weights'])}"))
    rows += [("test", measured(name, value)) for name, value in summary.get("test", {}).items()]
    rows.append(("updates", f"{summary['steps']:,}, {summary['skipped_steps']} skipped"))
    rows += [("time", f"{summary['seconds']:,.0f} s"), ("seed", str(recipe.seed))]
    rows += [("problem with data", problem) for problem in summary.get("problems", [])[:20]]
    return tuple(rows)


def _flat(record: dict[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            rows.extend(_flat(value, f"{prefix}{name}."))
        else:
            rows.append((prefix + name, str(value)))
    return tuple(rows)
