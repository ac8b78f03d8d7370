"""Weights in and out: files that may come from anyone, the names of other libraries, and putting them into a model."""

from .files import read_weights
from .fitting import CLASSIFIER_HEADS, load_weights
from .names import from_timm, to_timm
from .origin import origin_recipe, require_network, trained_model

__all__ = [
    "CLASSIFIER_HEADS",
    "from_timm",
    "load_weights",
    "origin_recipe",
    "read_weights",
    "require_network",
    "to_timm",
    "trained_model",
]
