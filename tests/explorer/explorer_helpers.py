"""Runs and pictures made up for the explorer's tests."""

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearsight.models import create_model
from nearsight.recipes.files import freeze
from nearsight.recipes.recipe import Recipe
from nearsight.runs.checkpoint import CheckpointStore


def make_run(folder: Path, *, model: str = "convit_nano_32", steps: tuple[int, ...] = (4, 8)) -> Path:
    """A run folder as training leaves it, with weights that tell the steps apart."""
    folder.mkdir(parents=True)
    recipe = Recipe(model=model, image_size=32, data="clothing", batch=8, warmup_epochs=0, epochs=2)
    (folder / "config.yaml").write_text(freeze(recipe))
    (folder / "classes.txt").write_text("hat\nshoes\n<b>skirt</b>\n")
    store = CheckpointStore(folder / "checkpoints", keep=10)
    for step in steps:
        weights = create_model(model, num_classes=3).state_dict()
        weights["head.bias"] = torch.tensor([0.0, 0.0, float(step)])
        for name in weights:
            if name.endswith("attn.gate"):
                weights[name] = torch.full_like(weights[name], 1 - step / 4)
        store.save(step, {"model": weights}, {"best": {"step": 4, "weights": "model"}})
    store.point("best", 4)
    return folder


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
