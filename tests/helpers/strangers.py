"""Runs as a stranger may send them: a config that says anything, beside sound files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.models import create_model
from nearsight.recipes.files import FORMAT
from nearsight.runs.checkpoint import CheckpointStore

CLASSES = ("hat", "shirt", "shoes")


def make_run(
    folder: Path, *, steps: tuple[int, ...] = (4,), weights: dict[str, Tensor] | None = None, **settings: Any
) -> Path:
    """A run folder as training leaves it, whose config says these things as well; the first step is the selected one.

    Its weights are those of a ConViT of 32 pixels, or those that are given, and every step has other biases.
    """
    folder.mkdir(parents=True)
    recipe = ClassificationRecipe(model="convit_nano_32", image_size=32, data="clothing", batch=8, repeats=1, epochs=10)
    config = {"format": FORMAT, **recipe.as_dict(), "device": "cpu", **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    store = CheckpointStore(folder / "checkpoints", keep=10)
    best = {"step": steps[0], "value": 50.0, "weights": "model"}
    for step in steps:
        model = (
            weights if weights is not None else create_model("convit_nano_32", num_classes=len(CLASSES)).state_dict()
        )
        bias = "head.bias"
        model = {**model, bias: model[bias].new_tensor([0.0, 0.0, float(step)])}
        store.save(step, {"model": model}, {"best": best}, {"metrics.jsonl": b""})
    store.point("best", steps[0])
    return folder
