"""Trained models taken elsewhere, each checked by running it: ONNX, torch.export, timm, hub folders; and `load`."""

from .formats import FORMATS, Exported, export
from .loading import Loaded, load

__all__ = ["FORMATS", "Exported", "Loaded", "export", "load"]
