"""Detectors from recipes, with fresh weights or those of a detector or a classifier's network; or torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.retinanet import RetinaNet
from nearsight.images.preprocessing import AUTO
from nearsight.models.registry import backbone_of, create_model
from nearsight.runs.folder import RunFolder
from nearsight.tasks import refuse_models_of_others
from nearsight.untrusted.model_size import check_size
from nearsight.weights import Network, chosen_network, find_weights, require_network, show_as, start_from
from nearsight.weights.sources import network_of


def build_detector(recipe: DetectionRecipe, num_classes: int, *, classes: Sequence[str] = ()) -> RetinaNet:
    """The recipe's detector with fresh weights, or with those in ``weights``: a detector's, or a classifier's."""
    refuse_models_of_others(recipe.task, recipe.model)
    arguments = {"num_classes": num_classes, "drop_path_rate": recipe.drop_path, **recipe.model_options}
    build = partial(create_model, recipe.model, **arguments)
    if recipe.model_options:
        check_size(build, recipe.model)
    model = build()
    assert isinstance(model, RetinaNet)
    if recipe.weights:
        found = find_weights(recipe.weights, download=recipe.download)
        tensors = found.read()
        if any(name.startswith(("heads.", "head.regression_head.")) for name in tensors):
            report = start_from(model, found, classes=classes, tensors=tensors)
        else:
            network = str(recipe.model_options.get("backbone", backbone_of(recipe.model)))
            wanted = f"{recipe.model}, which stands on {network}"
            require_network(recipe.weights, network, wanted, "take a detector on {}")
            report = start_from(model.body, found, tensors=tensors)
        model.weights_report = report  # type: ignore[assignment]
    show_as(model, recipe.preprocessing)
    return model


def with_weights(recipe: DetectionRecipe, run: RunFolder) -> DetectionRecipe:
    """A recipe that starts from weights of its network, or of its backbone, takes from them what it leaves open.

    Once ``run`` has started, its config has all of that, and the weights may be gone.
    """
    if not recipe.image_size or not (recipe.model or recipe.weights):
        raise ValueError("name an --image-size, and a --model or the --weights of a detector")
    if not recipe.weights:
        return recipe
    if run.has_config and (begun := run.recipe()).weights == recipe.weights:
        network: Network | None = network_of(begun)
        shown = begun.preprocessing.fields()
    else:
        found = find_weights(recipe.weights, download=recipe.download)
        network = chosen_network("", found) if not recipe.model else found.network
        shown = {} if found.preprocessing is None else found.preprocessing.fields()
    model = recipe.model or (network.model if network else "")
    same = network is not None and network.model in (model, backbone_of(model))
    options = dict(network.options) if network is not None and same else {}
    norms = {name: shown[name] for name in ("mean", "std") if name in shown and getattr(recipe, name) == AUTO}
    return recipe.with_changes(**norms, model=model, model_options={**options, **recipe.model_options})
