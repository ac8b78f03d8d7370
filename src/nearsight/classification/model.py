"""Building classifiers by name: ours, or timm's under ``timm:NAME``."""

from __future__ import annotations

import difflib
import inspect
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from nearsight.images.transforms import IMAGENET_MEAN, IMAGENET_STD
from nearsight.models import create_model
from nearsight.models.bounds import check_size
from nearsight.models.registry import arguments_of
from nearsight.recipes.foreign import PREFIX, check_arguments, check_name
from nearsight.recipes.recipe import Recipe
from nearsight.tasks import refuse_models_of_others
from nearsight.weights import CLASSIFIER_HEADS, load_weights, read_weights, require_network


def build_classifier(recipe: Recipe, num_classes: int) -> nn.Module:
    """The recipe's model with fresh weights, or with those of ``init_from``.

    It has ``num_classes`` outputs; what they mean is the task's.
    """
    model = _fresh(recipe, num_classes)
    if recipe.init_from:
        require_network(recipe.init_from, recipe.model, recipe.model, "use --model {}")
        load_weights(model, read_weights(recipe.init_from), recipe.init_from, may_differ=CLASSIFIER_HEADS)
    return model


def _fresh(recipe: Recipe, num_classes: int) -> nn.Module:
    refuse_models_of_others(recipe.task, recipe.model)
    stated = {"num_classes": num_classes, **recipe.stated_options}
    optional = {"img_size": recipe.image_size, "drop_path_rate": recipe.drop_path}
    if recipe.model.startswith(PREFIX):
        return _timm_classifier(recipe, stated, optional)
    if "img_size" not in arguments_of(recipe.model):
        del optional["img_size"]  # a network of convolutions takes images of any size
    build = partial(create_model, recipe.model, **{**optional, **stated})
    if recipe.stated_options:
        check_size(build, recipe.model)
    return build()


def _timm_classifier(recipe: Recipe, stated: dict[str, Any], optional: dict[str, Any]) -> nn.Module:
    """A model of timm that takes the recipe's images, with those optional arguments that its class knows."""
    name = recipe.model.removeprefix(PREFIX)
    known = _timm_arguments(name)
    check_arguments(name, stated, known)
    if recipe.stated_options:
        check_size(partial(timm_model, name, **stated), recipe.model)
    arguments = {**{key: value for key, value in optional.items() if key in known}, **stated}
    model = timm_model(name, **arguments)
    if recipe.drop_path and "drop_path_rate" not in arguments:
        warnings.warn(f"{recipe.model} cannot drop paths: drop_path {recipe.drop_path:g} is left out", stacklevel=2)
    require_size(model, recipe.model, recipe.image_size)
    # It is trained on pictures with this normalisation, whatever that of timm's weights is; `analysis` asks here.
    model.pretrained_cfg = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}  # type: ignore[assignment]
    return model.train()


def _timm_arguments(name: str) -> set[str]:
    """What the class of a timm model takes. Its entry point names no class, so one without memory is built to ask."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        kind = type(timm_model(name))
    known: set[str] = set()
    for part in kind.__mro__:  # as far as arguments are passed on
        if "__init__" not in vars(part):
            continue
        parameters = inspect.signature(vars(part)["__init__"]).parameters
        known |= parameters.keys()
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return known


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


def timm_model(name: str, *, fetch: bool = False, **arguments: Any) -> nn.Module:
    """A model of timm's own list; an unknown name or argument is a ``ValueError``.

    `fetch` is for public weights, from the network: only where the command or program itself asks for them.
    """
    check_name(name)
    import timm

    try:
        return timm.create_model(name, pretrained=fetch, **arguments)
    except Exception as error:  # a wrong name, argument or size: its models raise nearly every type
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near and name not in near else ""
        raise ValueError(f"timm cannot build {name!r}: {' '.join(str(error).split())}{hint}") from error
