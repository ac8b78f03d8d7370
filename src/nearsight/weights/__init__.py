"""Weights in and out: sources of every kind, the names of other libraries, and putting them into a model."""

from .building import chosen_network, create_started, show_as
from .fitting import CLASSIFIER_HEADS, Fit, fit, head_prefixes, load_weights, start_from
from .names import from_timm, from_torchvision_detector, to_timm, to_torchvision_detector
from .origin import origin_recipe, require_network, trained_model
from .sources import Network, Weights, find_weights, read_weights

__all__ = [
    "CLASSIFIER_HEADS",
    "Fit",
    "Network",
    "Weights",
    "chosen_network",
    "create_started",
    "find_weights",
    "fit",
    "from_timm",
    "from_torchvision_detector",
    "head_prefixes",
    "load_weights",
    "origin_recipe",
    "read_weights",
    "require_network",
    "show_as",
    "start_from",
    "to_timm",
    "to_torchvision_detector",
    "trained_model",
]
