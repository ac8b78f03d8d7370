"""Every model of both papers, by name."""

from . import sizes  # noqa: F401  registers the models
from .detection_outputs import detection_loss, postprocess
from .flops import Cost, cost_by_name, count_cost, count_parameters
from .registry import create_model, list_models, register
from .resnet import ResNet
from .retinanet import RetinaNet, create_detector, list_detectors
from .vit import VisionTransformer
from .weights import from_timm, load_timm_weights, to_timm

__all__ = [
    "Cost",
    "ResNet",
    "RetinaNet",
    "VisionTransformer",
    "cost_by_name",
    "count_cost",
    "count_parameters",
    "create_detector",
    "create_model",
    "detection_loss",
    "from_timm",
    "list_detectors",
    "list_models",
    "load_timm_weights",
    "postprocess",
    "register",
    "to_timm",
]
