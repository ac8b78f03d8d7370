"""Ctrl-C, by real signals: one line and exit code 130, whatever is going on."""

import random
import signal
import subprocess
import sys
import time

import pytest

LOADING = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
for _ in range(1000):
    pass
"""
PROGRAM = """
import os, signal
from nearsight.cli import app
app.listen()
try:
    {what}
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("unwound")
"""


@pytest.fixture(autouse=True)
def not_ignored():
    """What a shell starts in the background is deaf to Ctrl-C, and so would be the programs started here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_while_a_module_loads_nothing_is_unwound(tmp_path):
    (tmp_path / "slow_to_load.py").write_text(LOADING)
    ended = run(PROGRAM.format(what="import slow_to_load"), cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "nearsight: interrupted\n")


def test_at_work_it_is_an_exception_that_cleans_up():
    ended = run(PROGRAM.format(what="os.kill(os.getpid(), signal.SIGINT)"))
    assert (ended.returncode, ended.stdout) == (0, "unwound\n")


def test_where_it_is_ignored_it_stays_ignored():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    ended = run(code + PROGRAM.format(what="os.kill(os.getpid(), signal.SIGINT)"))
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize("verb", [["inspect", "convit_tiny"], ["train", "clothing", "--model", "convit_tiny"]])
def test_at_random_instants_of_starting(verb, tmp_path):
    code = "import sys; from nearsight.cli import app; app.listen(); print('listening', flush=True); "
    code += "from nearsight.cli.app import main; main()"
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *verb],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        time.sleep(random.uniform(0, 1.5))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        if process.returncode != 75:  # a training that had begun was saved
            assert (process.returncode, errors) == (130, "nearsight: interrupted\n")
