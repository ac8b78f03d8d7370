"""GPSA's positional weights and their gradients against the equation, by Triton's interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("positions_interpreted.py")


def test_weights_and_gradients_are_the_equation_s():
    finished = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for name, errors in json.loads(finished.stdout).items():
        for what, error in errors.items():
            assert error < 2e-5, (name, what, error)
