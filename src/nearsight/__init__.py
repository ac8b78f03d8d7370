"""Vision models that start near-sighted and learn how far to look.

    import nearsight
    model = nearsight.create_model("convit_tiny", num_classes=10)
    detector = nearsight.create_model("retinanet_resnet50", num_classes=3)

Names are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acceleration import accelerate, restore
    from .models import create_model, list_models

__all__ = ["accelerate", "create_model", "list_models", "restore"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        room = ".acceleration" if name in ("accelerate", "restore") else ".models"
        return getattr(import_module(room, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
