"""Reads images and labels, puts them in order and augments them. Imports nothing else of the package.

Names that need torch are imported when first used, so that settings and image sets stay quick to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .augment_config import IMAGENET_MEAN, IMAGENET_STD, Augment, Mixing
from .bad_images import BadImageLog, TooManyBadImages
from .counter import sample_keys
from .imageset import BadImage, ImageSet, Splits, first_classes, per_class_fraction, subset, with_classes
from .open_source import open_data, open_images
from .order import EpochOrder, epoch_order, local_batch

if TYPE_CHECKING:
    from .batch_augment import BatchAugment, BatchEval
    from .batch_mixing import BatchMix
    from .image_transform import EvalTransform, TrainTransform
    from .loading import Batch, BatchStream, ResidentStream, load_all

_NEEDS_TORCH = {
    "Batch": "loading",
    "BatchAugment": "batch_augment",
    "BatchEval": "batch_augment",
    "BatchMix": "batch_mixing",
    "BatchStream": "loading",
    "EvalTransform": "image_transform",
    "ResidentStream": "loading",
    "TrainTransform": "image_transform",
    "load_all": "loading",
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f".{_NEEDS_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augment",
    "BadImage",
    "BadImageLog",
    "Batch",
    "BatchAugment",
    "BatchEval",
    "BatchMix",
    "BatchStream",
    "EpochOrder",
    "EvalTransform",
    "ImageSet",
    "Mixing",
    "ResidentStream",
    "Splits",
    "TooManyBadImages",
    "TrainTransform",
    "epoch_order",
    "first_classes",
    "load_all",
    "local_batch",
    "open_data",
    "open_images",
    "per_class_fraction",
    "sample_keys",
    "subset",
    "with_classes",
]
