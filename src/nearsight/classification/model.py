"""Building classifiers by name: ours, or timm's under ``timm:NAME``."""

from __future__ import annotations

import difflib
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.detection.retinanet import list_detectors
from nearsight.models import create_model
from nearsight.recipes.files import thaw
from nearsight.runs.layout import CONFIG
from nearsight.weights.files import read_weights
from nearsight.weights.loading import load_weights


def build_classifier(recipe: ClassificationRecipe, num_classes: int) -> nn.Module:
    """The recipe's model with fresh weights, or with those of ``init_from``."""
    model = _fresh(recipe, num_classes)
    if recipe.init_from:
        origin = foreign_origin(recipe.init_from, recipe.model)
        if origin is not None:
            raise ValueError(
                f"{recipe.init_from} is a run of {origin}, whose weights do not fit {recipe.model}; use --model "
                f"{origin}"
            )
        load_weights(model, read_weights(recipe.init_from), recipe.init_from, new_head=True)
    return model


def foreign_origin(run: str, model: str) -> str | None:
    """The model whose weights a run has; None where they fit `model`: it has the same name but for the images' size."""
    config = Path(run) / CONFIG
    origin = thaw(config).model if config.is_file() else model
    families = {re.sub(r"_(32|64|96)$", "", name) for name in (origin, model)}
    return origin if len(families) > 1 else None


def _fresh(recipe: ClassificationRecipe, num_classes: int) -> nn.Module:
    arguments: dict[str, Any] = {"num_classes": num_classes, "drop_path_rate": recipe.drop_path, **recipe.model_options}
    if recipe.patch_size:
        arguments["patch_size"] = recipe.patch_size
    if recipe.model.startswith("timm:"):
        return _timm_classifier(recipe, {"img_size": recipe.image_size, **arguments})
    if recipe.model in list_detectors():
        raise ValueError(f"{recipe.model} is a detector; train it with: nearsight detect train {recipe.data}")
    try:
        return create_model(recipe.model, img_size=recipe.image_size, **arguments)
    except ValueError as error:
        if "'img_size'" not in str(error):
            raise
    return create_model(recipe.model, **arguments)  # a network of convolutions takes images of any size


def _timm_classifier(recipe: ClassificationRecipe, arguments: dict[str, Any]) -> nn.Module:
    """A model of timm that takes the recipe's images. Which arguments it takes, it says only when it is built."""
    name = recipe.model.removeprefix("timm:")
    while True:
        try:
            model = timm_model(name, **arguments)
            break
        except ValueError as error:
            ours = {"img_size", "drop_path_rate"} & set(arguments) - set(recipe.model_options)
            refused = [argument for argument in ours if f"keyword argument '{argument}'" in str(error)]
            if not refused:
                raise
            del arguments[refused[0]]
    if recipe.drop_path and "drop_path_rate" not in arguments:
        warnings.warn(f"{recipe.model} cannot drop paths: drop_path {recipe.drop_path:g} is left out", stacklevel=2)
    require_size(model, recipe.model, recipe.image_size)
    return model.train()


def require_size(model: nn.Module, name: str, side: int) -> None:
    """Whether a model takes square images of ``side`` pixels; the model is in evaluation mode afterwards."""
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, side, side))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name} does not take images of {side}×{side} pixels ({reason}); choose another --image-size"
        ) from error


def timm_model(name: str, **arguments: Any) -> nn.Module:
    """A model of timm; an unknown name or argument is a ``ValueError``."""
    import timm

    try:
        return timm.create_model(name, **arguments)
    except Exception as error:  # a wrong name, argument or size: its models raise nearly every type
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near and name not in near else ""
        raise ValueError(f"timm cannot build {name!r}: {' '.join(str(error).split())}{hint}") from error
