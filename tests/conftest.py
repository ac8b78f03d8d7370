from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
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


def make_picture(seed: int, height: int = 9, width: int = 13) -> np.ndarray:
    """A smooth coloured picture with a sharp patch: JPEG keeps it roughly, filters change it visibly."""
    rng = np.random.default_rng(seed)
    row, col = np.mgrid[0:height, 0:width]
    waves = [
        np.sin(row * rng.uniform(0.1, 0.7) + col * rng.uniform(0.1, 0.7) + phase) for phase in rng.uniform(0, 6, 3)
    ]
    pixels = np.stack(waves, axis=-1) * 90 + 128
    pixels[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture
def picture() -> Callable[..., np.ndarray]:
    return make_picture


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes {'train/cat': 3, …} as PNG files below a new folder."""

    def build(counts: dict[str, int], name: str = "photos") -> Path:
        root = tmp_path / name
        for folder, count in counts.items():
            (root / folder).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(make_picture(1000 * len(folder) + number)).save(root / folder / f"{number:03d}.png")
        return root

    return build
