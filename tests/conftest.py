import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Every test draws the same numbers whatever ran before it."""
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    """Measured, not asserted: how long a click takes."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "explorer_latency":
                terminalreporter.write_line(f"explorer: {value}")
