"""Runs and pictures made up for the explorer's tests."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.detection.model import build_detector
from nearsight.models import create_model
from nearsight.recipes.files import freeze, named_recipe
from nearsight.runs.checkpoint import CheckpointStore


def make_run(folder: Path, *, model: str = "convit_nano_32", steps: tuple[int, ...] = (4, 8)) -> Path:
    """A run folder as training leaves it, with weights that tell the steps apart."""
    folder.mkdir(parents=True)
    recipe = ClassificationRecipe(model=model, image_size=32, data="clothing", batch=8, warmup_epochs=0, epochs=2)
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


def make_detection_run(folder: Path, *, model: str = "retinanet_sasa_resnet26", **options) -> Path:
    """A detection run folder as training leaves it, of wide pictures of cells."""
    folder.mkdir(parents=True)
    options = {"layers": [1, 1, 1, 1], "width_multiplier": 0.25, "kernel_size": 3, **options}
    recipe = named_recipe("retinanet_small").with_changes(
        model=model,
        model_options={"channels": 16, "head_depth": 1, **options},
        image_size=128,
        image_height=90,
        data="bccd",
    )
    (folder / "config.yaml").write_text(freeze(recipe))
    classes = ("RBC", "WBC", "Platelets")
    listed = [{"id": number, "name": name} for number, name in enumerate(classes, start=1)]
    (folder / "categories.json").write_text(json.dumps(listed))
    store = CheckpointStore(folder / "checkpoints", keep=10)
    weights = build_detector(recipe, 3).state_dict()
    weights["heads.classes.predictor.bias"].zero_()  # every box is sure enough to be shown
    store.save(4, {"model": weights}, {"best": {"step": 4, "weights": "model"}})
    store.point("best", 4)
    return folder


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
