"""Reading images: decoding, order, augmentation and batches, as pure functions of seed, epoch and index."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Augment": "augmentation",
    "Mixing": "augmentation",
    "BatchAugment": "batch_augment",
    "BatchEval": "batch_augment",
    "BatchMix": "batch_mixing",
    "BatchStream": "streams",
    "EvalTransform": "transforms",
    "TrainCrop": "transforms",
    "device_batches": "streams",
    "epoch_order": "order",
    "normalise": "normalization",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: some need torch, others must not wait for it."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
