"""Building classifiers by name: ours, or timm's under ``timm:NAME``."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.convert import rebuilt
from nearsight.images.preprocessing import AUTO
from nearsight.models import create_model
from nearsight.models.registry import arguments_of
from nearsight.recipes.foreign import CONVERTED, PREFIX, check_arguments, check_name
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder
from nearsight.tasks import refuse_models_of_others
from nearsight.untrusted.model_size import check_size
from nearsight.weights import chosen_network, find_weights, require_network, show_as, start_from
from nearsight.weights.sources import network_of

_USUAL_SIDE = 224  # of pictures for networks that take any size


def build_classifier(
    recipe: Recipe, num_classes: int, *, classes: Sequence[str] = (), download: bool = False
) -> nn.Module:
    """The recipe's model with fresh weights, or with those of ``weights``, as `model.weights_report` then tells.

    It has ``num_classes`` outputs; what they mean is the task's. A head of weights for other ``classes`` is not taken.
    """
    model = _fresh(recipe, num_classes)
    if recipe.weights:
        require_network(recipe.weights, recipe.model, recipe.model, "use --model {}")
        found = find_weights(recipe.weights, download=download)
        model.weights_report = start_from(model, found, classes=classes)  # type: ignore[assignment]
    show_as(model, recipe.preprocessing)  # in training, and by `analysis`; whatever timm's weights would want
    return model


def with_weights(recipe: ClassificationRecipe, run: RunFolder) -> ClassificationRecipe:
    """A recipe that starts from weights takes from them what it leaves open: network, image size, preprocessing.

    Once ``run`` has started, its config has all of that, and the weights may be gone.
    """
    if not recipe.weights:
        if not recipe.model or not recipe.image_size:
            raise ValueError("name the --weights whose network is to be taken, or a --model and its --image-size")
        return recipe
    if run.has_config and (begun := run.recipe()).weights == recipe.weights and isinstance(begun, ClassificationRecipe):
        network, shown = network_of(begun), begun.preprocessing.fields()
    else:
        found = find_weights(recipe.weights, download=recipe.download)
        network = chosen_network(recipe.model, found)
        shown = {} if found.preprocessing is None else found.preprocessing.fields()
    options = dict(network.options) if recipe.model in ("", network.model) else {}
    changes: dict[str, Any] = {name: value for name, value in shown.items() if getattr(recipe, name) == AUTO}
    if not recipe.model:
        changes["model"] = network.model
    if not recipe.image_size:
        changes["image_size"] = network.image_size or _USUAL_SIDE
    patch = options.pop("patch_size", 0)
    if not recipe.patch_size and "patch_size" not in recipe.model_options:
        changes["patch_size"] = patch
    return recipe.with_changes(**changes, model_options={**options, **recipe.model_options})


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
    known = timm_arguments(name)
    check_arguments(name, stated, known)
    if recipe.stated_options:
        check_size(partial(timm_model, name, **stated), recipe.model)
    arguments = {**{key: value for key, value in optional.items() if key in known}, **stated}
    model = timm_model(name, **arguments)
    model.made_as = recipe.model, arguments  # type: ignore[assignment] # as `models.saving` has it
    if recipe.drop_path and "drop_path_rate" not in arguments:
        warnings.warn(f"{recipe.model} cannot drop paths: drop_path {recipe.drop_path:g} is left out", stacklevel=2)
    require_size(model, recipe.model, recipe.image_size)
    return model.train()


def known_timm_model(name: str, arguments: dict[str, Any]) -> nn.Module:
    """A model of timm with arguments that a stranger may have written."""
    check_arguments(name, arguments, timm_arguments(name))
    model = timm_model(name, **arguments)
    model.made_as = PREFIX + name, arguments  # type: ignore[assignment]
    return model


def timm_arguments(name: str) -> set[str]:
    """What the class of a timm model takes. Its entry point names no class, so one without memory is built to ask."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        kind = type(timm_model(name))
    known = {CONVERTED}  # which `timm_model` reads itself
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


def timm_model(name: str, **arguments: Any) -> nn.Module:
    """A model of timm's own list with fresh weights; an unknown name or argument is a ``ValueError``."""
    check_name(name)
    import timm

    converted = arguments.pop(CONVERTED, None)
    try:
        model = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:  # a wrong name, argument or size: its models raise nearly every type
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near and name not in near else ""
        raise ValueError(f"timm cannot build {name!r}: {' '.join(str(error).split())}{hint}") from error
    return model if converted is None else rebuilt(model, converted)
