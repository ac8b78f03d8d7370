"""Draws the rooms of the package and which of them import which, from the code: docs/figures/rooms.svg.

    python scripts/draw_rooms.py

A room is a folder or a file directly below src/nearsight. It imports rooms above it in the drawing only. An arrow that
others imply (a → b → c makes a → c superfluous) is left out. tests/test_import_flow.py holds both to the code.
"""

from __future__ import annotations

import argparse
import ast
from html import escape
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "nearsight"
DRAWING = Path(__file__).resolve().parents[1] / "docs" / "figures" / "rooms.svg"

# From the top down. Rooms in one row do not import each other.
ROOMS = (
    ("geometry", "randomness", "text", "tasks", "intervals"),
    ("untrusted",),
    ("functional", "images"),
    ("recipes",),
    ("kernels", "runs"),
    ("datasets",),
    ("nn",),
    ("convert",),
    ("models",),
    ("acceleration", "cost"),
    ("weights",),
    ("analysis", "timm"),
    ("reports",),
    ("engine",),
    ("classification", "detection"),
    ("explorer", "bench", "export"),
    ("reproduce",),
    ("cli",),
)
FRONT = {"__init__": {"models", "detection", "acceleration", "weights", "export"}, "__main__": {"cli"}}
"""The package itself, whose names are loaded when first used, and `python -m nearsight`."""

_COLUMN = {
    **dict.fromkeys(
        ("geometry", "functional", "kernels", "nn", "convert", "models", "acceleration", "bench", "timm"), 0
    ),
    **dict.fromkeys(("intervals", "cost", "reproduce", "cli"), 1),
    **dict.fromkeys(("randomness", "images", "datasets", "analysis", "classification", "explorer"), 2),
    **dict.fromkeys(("text", "untrusted", "weights", "reports", "engine", "export"), 3),
    **dict.fromkeys(("tasks", "recipes", "runs", "detection"), 4),
}
_WIDTH, _HEIGHT, _ROW, _MARGIN, _GAP = 132, 34, 74, 24, 30


def may_import() -> dict[str, set[str]]:
    """For each room the rooms above it."""
    above = {room: {r for row in ROOMS[:place] for r in row} for place, row in enumerate(ROOMS) for room in row}
    return above | FRONT


def imported_rooms(file: Path, package: Path = PACKAGE) -> set[str]:
    """Which rooms a file names in its import statements, wherever in the file they stand."""
    inside = ("nearsight", *file.relative_to(package).parts[:-1])
    modules = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            modules += [[*base, alias.name] for alias in node.names]
    known = may_import()
    return {module[1] for module in modules if module[0] == "nearsight" and len(module) > 1 and module[1] in known}


def room_of(file: Path, package: Path = PACKAGE) -> str:
    return file.relative_to(package).parts[0].removesuffix(".py")


def imports_between_rooms() -> dict[str, set[str]]:
    """room → the rooms that its files import."""
    found: dict[str, set[str]] = {room: set() for row in ROOMS for room in row}
    for file in PACKAGE.rglob("*.py"):
        room = room_of(file)
        if room in found:
            found[room] |= imported_rooms(file) - {room}
    return found


def without_implied(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Arrows that no chain of others makes superfluous."""

    def reached(room: str) -> set[str]:
        return {far for near in imports[room] for far in {near, *reached(near)}}

    return {
        room: {near for near in direct if not any(near in reached(other) for other in direct - {near})}
        for room, direct in imports.items()
    }


def draw() -> str:
    """The drawing as SVG, legible on a light and on a dark page."""
    width = 2 * _MARGIN + 5 * _WIDTH + 4 * _GAP
    height = 2 * _MARGIN + (len(ROOMS) - 1) * _ROW + _HEIGHT
    place = {
        room: (_MARGIN + _WIDTH / 2 + _COLUMN[room] * (_WIDTH + _GAP), _MARGIN + index * _ROW + _HEIGHT / 2)
        for index, row in enumerate(ROOMS)
        for room in row
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#6b7785"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for room, above in without_implied(imports_between_rooms()).items():
        for other in sorted(above):
            (x1, y1), (x2, y2) = place[room], place[other]
            start, end = y1 - _HEIGHT / 2, y2 + _HEIGHT / 2
            bend = (start - end) / 2
            parts.append(
                f'<path d="M{x1:.0f} {start:.0f}C{x1:.0f} {start - bend:.0f} {x2:.0f} {end + bend:.0f} {x2:.0f} '
                f'{end:.0f}" fill="none" stroke="#6b7785" marker-end="url(#tip)"><title>{room} imports {other}</title>'
                "</path>"
            )
    for room, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - _WIDTH / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
            'fill="#eef3f8" stroke="#33658a"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#1b1f24">{escape(room)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    DRAWING.write_text(draw())
    print(f"written to {DRAWING}")
