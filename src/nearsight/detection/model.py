"""Detectors from recipes, with fresh weights or those of a detector or a classifier's network; or torchvision's."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.retinanet import RetinaNet, ViTBackbone
from nearsight.models.bounds import check_size
from nearsight.models.registry import backbone_of, create_model
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder
from nearsight.tasks import refuse_models_of_others
from nearsight.weights import CLASSIFIER_HEADS, load_weights, origin_recipe, read_weights, require_network


def build_detector(recipe: DetectionRecipe, num_classes: int) -> RetinaNet:
    """The recipe's detector with fresh weights, or with those in ``init_from``: a detector's, or a classifier's."""
    refuse_models_of_others(recipe.task, recipe.model)
    arguments = {"num_classes": num_classes, "drop_path_rate": recipe.drop_path, **recipe.model_options}
    build = partial(create_model, recipe.model, **arguments)
    if recipe.model_options:
        check_size(build, recipe.model)
    model = build()
    assert isinstance(model, RetinaNet)
    if recipe.init_from:
        weights = read_weights(recipe.init_from)
        if any(name.startswith("heads.") for name in weights):
            load_weights(model, weights, recipe.init_from, may_differ=("heads.classes.predictor.",))
        else:
            network = str(recipe.model_options.get("backbone", backbone_of(recipe.model)))
            wanted = f"{recipe.model}, which stands on {network}"
            require_network(recipe.init_from, network, wanted, "take a detector on {}")
            body = {name: value for name, value in weights.items() if not name.startswith(CLASSIFIER_HEADS)}
            _load_backbone(model.backbone, body, recipe)
    return model


def _load_backbone(backbone: nn.Module, weights: dict[str, Tensor], recipe: DetectionRecipe) -> None:
    """A classifier's network; positions that were learned on images of another size are resampled."""
    origin = _backbone_run(recipe)
    if not isinstance(backbone, ViTBackbone):
        load_weights(backbone, weights, recipe.init_from)
    elif origin is None:
        load_weights(backbone.vit, weights, recipe.init_from)
    else:
        size = backbone.vit.img_size
        backbone.vit.set_input_size(origin.image_size)
        load_weights(backbone.vit, weights, recipe.init_from)
        backbone.vit.set_input_size(size)


def with_backbone_options(recipe: DetectionRecipe, run: RunFolder) -> DetectionRecipe:
    """A recipe that starts from a classification run of its backbone gets that run's options where it states none.

    Once ``run`` has started, its config has them, and the run it started from may be gone.
    """
    origin = _backbone_run(recipe)
    if origin is not None:
        options = origin.stated_options
    elif recipe.init_from and run.has_config and (begun := run.recipe()).init_from == recipe.init_from:
        options = begun.model_options
    else:
        return recipe
    return recipe.with_changes(model_options={**options, **recipe.model_options})


def _backbone_run(recipe: DetectionRecipe) -> Recipe | None:
    """Settings of the classification run of the same backbone that a recipe starts from; None where it does not."""
    origin = origin_recipe(recipe.init_from)
    return origin if origin is not None and origin.model == backbone_of(recipe.model) else None


def load_torchvision_weights(model: RetinaNet, weights: dict[str, Tensor], *, batch_norm_eps: float = 1e-5) -> None:
    """Put a state dict of torchvision's `retinanet_resnet50_fpn` into a convolutional RetinaNet without norms.

    Its weights trained on COCO belong to frozen batch norms with `batch_norm_eps=0.0`; the difference is folded in.
    """
    renamed = {_from_torchvision(name): value for name, value in weights.items()}
    for name in model.state_dict():
        if name.endswith("num_batches_tracked"):
            renamed.setdefault(name, torch.zeros((), dtype=torch.int64))
    for name, module in model.named_modules():
        variance = renamed.get(f"{name}.running_var")
        if isinstance(module, nn.BatchNorm2d) and variance is not None and not math.isclose(module.eps, batch_norm_eps):
            fold = ((variance + module.eps) / (variance + batch_norm_eps)).sqrt()
            renamed[f"{name}.weight"] = renamed[f"{name}.weight"] * fold
    load_weights(model, renamed, "a state dict of torchvision's retinanet_resnet50_fpn")


_TORCHVISION_PREFIXES = (
    ("backbone.body.conv1.", "backbone.stem.conv1."),
    ("backbone.body.bn1.", "backbone.stem.bn1."),
    ("backbone.body.", "backbone."),
    ("backbone.fpn.inner_blocks.", "pyramid.lateral."),
    ("backbone.fpn.layer_blocks.", "pyramid.output."),
    ("backbone.fpn.extra_blocks.p6.", "pyramid.coarser.0."),
    ("backbone.fpn.extra_blocks.p7.", "pyramid.coarser.1."),
    ("head.classification_head.conv.", "heads.classes.mixers."),
    ("head.classification_head.cls_logits.", "heads.classes.predictor."),
    ("head.regression_head.conv.", "heads.boxes.mixers."),
    ("head.regression_head.bbox_reg.", "heads.boxes.predictor."),
)


def _from_torchvision(name: str) -> str:
    for theirs, ours in _TORCHVISION_PREFIXES:
        if name.startswith(theirs):
            rest = name.removeprefix(theirs)
            if ours.startswith("backbone.") and ".conv2." in rest:
                return ours + rest.replace(".conv2.", ".mixer.")
            if ours.endswith(("lateral.", "output.", "mixers.")):
                rest = rest.replace(".0.", ".", 1)  # their blocks are sequences of one convolution
            return ours + rest
    return name
