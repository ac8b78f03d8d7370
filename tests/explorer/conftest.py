"""Small models, pictures and runs for the explorer's tests."""

from pathlib import Path

import numpy as np
import pytest
from explorer_helpers import encoded, make_detection_run, make_run

from nearsight.explorer.sources import open_source


@pytest.fixture
def picture_bytes() -> bytes:
    return encoded(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "nano-1")


@pytest.fixture(scope="session")
def detection_run(tmp_path_factory) -> Path:
    return make_detection_run(tmp_path_factory.mktemp("runs") / "cells-1")


@pytest.fixture
def sources(run_folder):
    return [open_source(str(run_folder)), open_source("deit_nano_32")]
