"""From what a person names as data to sets of labelled images."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "LabelledBatches": "loading",
    "first_classes": "labelled",
    "load_all": "loading",
    "open_data": "sources",
    "open_images": "sources",
    "per_class_fraction": "labelled",
    "subset": "labelled",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: some need torch, others must not wait for it."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
