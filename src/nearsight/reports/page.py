"""One self-contained HTML page: nothing is loaded from anywhere, every name is escaped. Imports no matplotlib."""

from __future__ import annotations

import base64
import html
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
img { max-width: 100%; display: block } figure { margin: 1rem 0 } figcaption { color: #555 }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left }
"""
# Nothing but inline pictures and this style may be used, whatever a class name tries.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Picture(NamedTuple):
    """A figure of the page: the name its PNG file is kept under, the PNG's bytes, and how to read it."""

    name: str
    content: bytes
    caption: str


@dataclass(frozen=True)
class Page:
    """A section of the page: text (plain), pictures, a table of strings, and links to files beside the page."""

    title: str
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    links: tuple[tuple[str, str], ...] = ()  # (path from the page's folder, what it holds)


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
