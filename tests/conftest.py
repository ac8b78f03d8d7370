import os
import secrets

import pytest
import torch
from processes import Zygote

# Kernels meet fresh random numbers at every run. In the environment, for worker processes and interpreter scripts.
SEED = os.environ.setdefault("NEARSIGHT_TEST_SEED", str(secrets.randbelow(2**32)))


@pytest.fixture(autouse=True)
def _seeded():
    """Every test draws the same numbers whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def zygote():
    """Starts training processes."""
    server = Zygote()
    yield server
    server.close()


def pytest_terminal_summary(terminalreporter):
    """What repeats a failure; and, measured, not asserted, how long a click takes."""
    if terminalreporter.getreports("failed") or terminalreporter.getreports("error"):
        terminalreporter.write_line(f"kernels' random numbers: NEARSIGHT_TEST_SEED={SEED} repeats them")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "explorer_latency":
                terminalreporter.write_line(f"explorer: {value}")
