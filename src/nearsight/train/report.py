"""One self-contained page about a finished run: nothing is loaded from anywhere, every name is escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nearsight.train import plots
from nearsight.train.durable import disk_errors, replace
from nearsight.train.environment import without_home
from nearsight.train.recipe import Recipe
from nearsight.train.runfolder import RunFolder
from nearsight.train.task import Page

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
img { max-width: 100%; display: block } figure { margin: 1rem 0 } figcaption { color: #555 }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
"""
# Nothing but inline pictures and this style may be used, whatever a class name tries.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    folder: RunFolder, recipe: Recipe, summary: dict[str, Any], pages: Sequence[Page], selection: str
) -> Path:
    """Write ``report.html`` and each picture as a PNG of its own; ``results.png`` has the curves."""
    records = folder.metrics()
    results = plots.curves(records, selection)
    overview = Page("Result", table=_overview(recipe, summary), pictures=(("Results", results),))
    settings = [(name, _shown(value)) for name, value in recipe.as_dict().items()]
    environment = folder.read_json("env.json") or {}
    all_pages = [overview, *pages, Page("Settings", table=tuple(settings)), Page("Made with", table=_flat(environment))]
    with disk_errors("writing the report"):
        for page in all_pages:
            for caption, content in page.pictures:
                replace(folder.path / f"{_file_name(caption)}.png", content)
        path = folder.path / "report.html"
        replace(path, page_html(f"{recipe.model} on {without_home(recipe.data)}", all_pages).encode())
    return path


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
    for caption, content in page.pictures:
        data = base64.b64encode(content).decode()
        label = html.escape(caption)
        picture = f'<img alt="{label}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure>{picture}<figcaption>{label}</figcaption></figure>")
    return "\n".join([*parts, "</section>"])


def _overview(recipe: Recipe, summary: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    selected = summary.get("selected") or {}
    rows = [
        ("model", recipe.model),
        ("parameters", f"{summary['parameters']:,}"),
        ("data", without_home(recipe.data)),
        ("selected on val", str(selected.get("value"))),
        ("selected at", f"step {selected.get('step')}, {selected.get('weights')} weights"),
        *((f"test {name}", f"{value:.3f}") for name, value in summary.get("test", {}).items()),
        ("updates", f"{summary['steps']:,}, {summary['skipped_steps']} skipped"),
        ("seconds", str(summary["seconds"])),
        ("seed", str(recipe.seed)),
        *(("problem with data", problem) for problem in summary.get("problems", [])[:20]),
    ]
    return tuple(rows)


def _flat(record: dict[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            rows.extend(_flat(value, f"{prefix}{name}."))
        else:
            rows.append((prefix + name, str(value)))
    return tuple(rows)


def _shown(value: Any) -> str:
    return without_home(value) if isinstance(value, str) else str(value)


def _file_name(caption: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", caption.lower()).strip("_")[:60] or "picture"
