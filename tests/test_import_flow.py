"""Imports flow one way: a part may import only what stands to its left, and `data` imports nothing of ours."""

import ast
from pathlib import Path

import pytest

import nearsight

PACKAGE = Path(nearsight.__file__).parent
MAY_IMPORT = {
    "geometry": set(),
    "functional": {"geometry"},
    "kernels": {"geometry", "functional"},
    "nn": {"geometry", "functional", "kernels"},
    "models": {"geometry", "functional", "kernels", "nn"},
    "data": set(),
    "analysis": {"geometry", "functional", "kernels", "nn", "models", "data"},
    "train": {"geometry", "functional", "kernels", "nn", "models", "data", "analysis"},
    "explorer": {"geometry", "functional", "kernels", "nn", "models", "data", "analysis", "train"},
    "repro": {"geometry", "functional", "kernels", "nn", "models", "data", "analysis", "train"},
}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
MAY_IMPORT["__init__"] = {"models"}


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


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_left(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert part in MAY_IMPORT, f"{part} has no place in the flow of imports; give it one"
    wrong = imported_parts(path) - MAY_IMPORT[part] - {part}
    assert not wrong, f"{path.name} in {part} imports from {sorted(wrong)}"


def test_the_check_sees_relative_and_absolute_imports(tmp_path, monkeypatch):
    folder = tmp_path / "nn"
    folder.mkdir()
    file = folder / "x.py"
    lines = (
        "from ..models.vit import Block",
        "from .. import train",
        "import nearsight.explorer.page",
        "from . import x",
    )
    file.write_text("\n".join(lines))
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert imported_parts(file) == {"models", "train", "explorer", "nn"}
