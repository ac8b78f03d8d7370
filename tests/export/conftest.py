"""Runs of a few steps, made once."""

import numpy as np
import pytest
from PIL import Image

from nearsight.classification.recipe import CLASSIFICATION_RECIPES
from nearsight.engine.training import train
from nearsight.runs.folder import RunFolder

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 40, 40)}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        for number in range(10):
            pixels = np.clip(random.normal(colour, 40, (36, 44, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def run(pictures, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "colours"
    recipe = CLASSIFICATION_RECIPES["small"].with_changes(
        data=str(pictures), model="convit_nano_32", model_options={"depth": 3, "width": 72}, image_size=32,
        epochs=1.0, batch=8, val_fraction=0.3, workers=0, warmup_epochs=0.0,
    )  # fmt: skip
    train(recipe, RunFolder(path))
    return path
