"""Imports flow one way: a room imports only rooms above it, and the drawing in the docs shows what the code does."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("draw_rooms", ROOT / "scripts" / "draw_rooms.py")
assert spec is not None
assert spec.loader is not None
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


@pytest.mark.parametrize(
    "file", sorted(rooms.PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(rooms.PACKAGE))
)
def test_a_file_imports_only_from_above(file):
    room, allowed = rooms.room_of(file), rooms.may_import()
    assert room in allowed, f"{room} has no place in the flow of imports; give it one in scripts/draw_rooms.py"
    wrong = rooms.imported_rooms(file) - allowed[room] - {room}
    assert not wrong, f"{file.name} in {room} imports from {sorted(wrong)}"


def test_the_drawing_is_that_of_the_code():
    assert rooms.DRAWING.read_text() == rooms.draw(), "run python scripts/draw_rooms.py"


def test_every_room_is_drawn():
    there = {rooms.room_of(file) for file in rooms.PACKAGE.rglob("*.py")} - set(rooms.FRONT)
    assert there <= {room for row in rooms.ROOMS for room in row}


def test_implied_arrows_are_left_out():
    assert rooms.without_implied({"a": set(), "b": {"a"}, "c": {"a", "b"}}) == {"a": set(), "b": {"a"}, "c": {"b"}}


def test_the_check_sees_relative_and_absolute_imports(tmp_path):
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
    assert rooms.imported_rooms(file, tmp_path) == {"models", "engine", "explorer", "nn"}
