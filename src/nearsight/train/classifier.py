"""Building classifiers by name: ours, or timm's under ``timm:NAME``."""

from __future__ import annotations

from typing import Any

from torch import nn

from nearsight.models import create_model
from nearsight.train.recipe import Recipe
from nearsight.train.weights import load_weights, read_weights


def build_classifier(recipe: Recipe, num_classes: int) -> nn.Module:
    """The recipe's model with fresh weights, or with those of ``init_from``."""
    model = _fresh(recipe, num_classes)
    if recipe.init_from:
        load_weights(model, read_weights(recipe.init_from), recipe.init_from, new_head=True)
    return model


def _fresh(recipe: Recipe, num_classes: int) -> nn.Module:
    arguments: dict[str, Any] = {"num_classes": num_classes, "drop_path_rate": recipe.drop_path, **recipe.model_options}
    if recipe.patch_size:
        arguments["patch_size"] = recipe.patch_size
    if recipe.model.startswith("timm:"):
        return timm_model(recipe.model.removeprefix("timm:"), **arguments)
    try:
        return create_model(recipe.model, img_size=recipe.image_size, **arguments)
    except ValueError as error:
        if "'img_size'" not in str(error):
            raise
    return create_model(recipe.model, **arguments)  # a network of convolutions takes images of any size


def timm_model(name: str, **arguments: Any) -> nn.Module:
    """A model of timm; an unknown name or argument is a ``ValueError``."""
    import timm

    try:
        return timm.create_model(name, **arguments)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"timm cannot build {name!r}: {error}") from error
