"""What several of the fault tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference(zygote, tmp_path_factory) -> Path:
    """The undisturbed toy run."""
    run = tmp_path_factory.mktemp("reference") / "run"
    ended = zygote.run(run)
    assert ended.code == 0, ended.text
    return run
