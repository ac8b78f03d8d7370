"""Every network of both papers, by name."""

from .registry import create_model, list_models, register
from .resnet import ResNet
from .vit import VisionTransformer

__all__ = ["ResNet", "VisionTransformer", "create_model", "list_models", "register"]
