"""GPSA's positional weights and their gradients against the equation, by Triton's interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_positions.py")


def test_weights_and_gradients_are_as_exact_as_the_equation_in_float32():
    finished = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for name, errors in json.loads(finished.stdout).items():
        for what, (ours, plain) in errors.items():
            assert ours <= 10 * plain + 1e-6, (name, what, ours, plain)
