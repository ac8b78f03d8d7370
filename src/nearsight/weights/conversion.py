"""A run whose network is another run's after conversion: its settings, data record and weights, ready to train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearsight.recipes.files import freeze
from nearsight.recipes.foreign import CONVERTED
from nearsight.recipes.recipe import Recipe
from nearsight.runs.atomic_files import replace
from nearsight.runs.environment import describe_environment
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import (
    CATEGORIES,
    CLASSES,
    CONFIG,
    CONVERSION,
    DATA,
    ENVIRONMENT,
    METRICS,
    MODEL,
    OPTIMIZER,
    TRAIN_IMAGES,
)
from nearsight.runs.plain_paths import plain
from nearsight.tasks import task_kind
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import LIST_BYTES
from nearsight.weights.fitting import load_weights

_CARRIED = (DATA, CLASSES, CATEGORIES, TRAIN_IMAGES)
"""What a run keeps of its data: the same for the new one."""


def selected_model(run: RunFolder) -> nn.Module:
    """The run's network with the weights that validation selected, for evaluation."""
    recipe = run.recipe()
    kind = task_kind(recipe.task)
    if kind.inspect is None:
        raise ValueError(f"{run.path} is a run of {recipe.task}, whose networks cannot be built without their data")
    model = kind.inspect(run).fresh_model()
    load_weights(model, run.selected_weights(), str(run.path))
    return model.eval()


def converted_recipe(recipe: Recipe, converted: Mapping[str, Any] | None) -> Recipe:
    """The recipe with this conversion of its network, or with none."""
    options = {name: value for name, value in recipe.model_options.items() if name != CONVERTED}
    if converted is not None:
        options[CONVERTED] = dict(converted)
    return recipe.with_changes(weights="", model_options=options)


def write_converted_run(
    path: Path, origin: RunFolder, recipe: Recipe, model: nn.Module, report: Mapping[str, Any]
) -> RunFolder:
    """A new run folder at step 0 with the network's weights; `resume` trains it, as every other verb uses it."""
    if path.exists() and any(path.iterdir()):
        raise ValueError(f"{path} is not empty; choose another --out")
    run = RunFolder(path)
    with run.owned():
        for name in _CARRIED:
            source = plain(origin.path / name)
            if source.is_file():
                replace(run.path / name, read_bytes(source, LIST_BYTES))
        run.write_json(CONVERSION, {"of": origin.name, **report})
        run.write_json(ENVIRONMENT, describe_environment(torch.device("cpu")))
        # As training writes it before its first step: no moments, no log, a loss that is not scaled.
        begun = {"world_size": 1, "scale": [1.0, 0.0], "pending": []}
        run.checkpoints().save(0, {MODEL: model.state_dict(), OPTIMIZER: {}}, begun, {METRICS: b""})
        run.write_text(METRICS, "")
        run.write_text(CONFIG, freeze(recipe))  # last: a folder with a config is complete
    return run
