"""Every benchmark and script says what it does: its imports hold, and it starts nothing when asked for help."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/*.py")])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_help_is_answered(program, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(program), "--help"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "usage: " in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", sorted(ROOT.glob("scripts/*.sh")), ids=lambda path: path.name)
def test_shell_scripts_can_be_parsed(program):
    subprocess.run(["sh", "-n", str(program)], check=True, timeout=20)
