"""The measured attack on the page, at full size: everybody who clicks is answered, and memory stays within 1.5 GB."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "explorer_attack.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_connections_and_300_uploads():
    spec = importlib.util.spec_from_file_location("explorer_attack", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    figures = script.measure()
    assert figures["connections"] >= script.CONNECTIONS
    assert sum(figures["uploads"].values()) == script.UPLOADS
    assert figures["uploads"]["200"] >= 1
    assert figures["clicks_without_answer"] == 0
    assert figures["largest_memory_mib"] <= 1536
