"""Weights of torchvision's RetinaNet in ours."""

import math

import torch
from torch import Tensor, nn

from nearsight.detection.retinanet import RetinaNet


def load_torchvision_weights(model: RetinaNet, weights: dict[str, Tensor], *, batch_norm_eps: float = 1e-5) -> None:
    """Put a state dict of torchvision's `retinanet_resnet50_fpn` into a convolutional RetinaNet without norms.

    Its weights trained on COCO belong to frozen batch norms with `batch_norm_eps=0.0`; the difference is folded in.
    """
    own = model.state_dict()
    renamed = {_from_torchvision(name): value for name, value in weights.items()}
    for name in own:
        if name.endswith("num_batches_tracked"):
            renamed.setdefault(name, torch.zeros((), dtype=torch.int64))
    missing, unknown = sorted(set(own) - set(renamed)), sorted(set(renamed) - set(own))
    if missing or unknown:
        raise ValueError(
            "the weights are not those of a convolutional RetinaNet without norms: "
            f"missing {', '.join(missing[:4]) or 'nothing'}; unknown {', '.join(unknown[:4]) or 'nothing'}"
        )
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, nn.BatchNorm2d) and not math.isclose(module.eps, batch_norm_eps):
            variance = renamed[f"{name}.running_var"]
            renamed[f"{name}.weight"] = (
                renamed[f"{name}.weight"] * ((variance + module.eps) / (variance + batch_norm_eps)).sqrt()
            )
    model.load_state_dict(renamed)


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
