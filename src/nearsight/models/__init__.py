"""Every model of both papers, by name."""

from . import sizes  # noqa: F401  registers the models
from .flops import Cost, cost_by_name, count_cost, count_parameters
from .registry import create_model, list_models, register
from .resnet import ResNet
from .vit import VisionTransformer
from .weights import from_timm, load_timm_weights, to_timm

__all__ = [
    "Cost",
    "ResNet",
    "VisionTransformer",
    "cost_by_name",
    "count_cost",
    "count_parameters",
    "create_model",
    "from_timm",
    "list_models",
    "load_timm_weights",
    "register",
    "to_timm",
]
