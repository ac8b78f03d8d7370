"""Imports flow one way: a room imports only rooms to its left, and the two tasks do not know each other."""

import ast
from pathlib import Path

import pytest

import nearsight

PACKAGE = Path(nearsight.__file__).parent
# From left to right. What is in one row does not import from its neighbours in that row.
ROOMS = (
    ("geometry", "randomness", "text", "tasks"),
    ("functional", "images", "recipes"),
    ("kernels", "datasets", "runs"),
    ("nn",),
    ("models",),
    ("accelerate", "cost"),
    ("weights",),
    ("analysis",),
    ("reports",),
    ("engine",),
    ("classification", "detection"),
    ("explorer", "bench"),
    ("cli",),
)
MAY_IMPORT = {room: {left for row in ROOMS[:place] for left in row} for place, row in enumerate(ROOMS) for room in row}
MAY_IMPORT["__init__"] = {"models", "detection"}
MAY_IMPORT["__main__"] = {"cli"}


def imported_parts(path: Path) -> set[str]:
    """Which parts of nearsight a file names in its import statements, wherever in the file they stand."""
    package = ("nearsight", *path.relative_to(PACKAGE).parts[:-1])
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            modules += [[*base, alias.name] for alias in node.names]
    return {module[1] for module in modules if module[0] == "nearsight" and len(module) > 1 and module[1] in MAY_IMPORT}


NOT_YET = {  # rooms being rearranged
    "classification", "detection", "engine", "runs", "weights", "recipes", "reports", "analysis", "cost", "explorer",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_left(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert part in MAY_IMPORT, f"{part} has no place in the flow of imports; give it one"
    wrong = imported_parts(path) - MAY_IMPORT[part] - {part}
    if part in NOT_YET:
        return
    assert not wrong, f"{path.name} in {part} imports from {sorted(wrong)}"


def test_the_check_sees_relative_and_absolute_imports(tmp_path, monkeypatch):
    folder = tmp_path / "nn"
    folder.mkdir()
    file = folder / "x.py"
    lines = (
        "from ..models.vit import Block",
        "from .. import engine",
        "import nearsight.explorer.page",
        "from . import x",
    )
    file.write_text("\n".join(lines))
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert imported_parts(file) == {"models", "engine", "explorer", "nn"}
