"""Runs a script of this folder under Triton's interpreter, which must be asked for before Triton is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def results_of(script: str) -> Any:
    """What the script prints in its last line, as JSON."""
    path = Path(__file__).with_name(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with tests/helpers
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=170, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
