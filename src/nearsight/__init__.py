"""Vision models that start near-sighted and learn how far to look.

    import nearsight
    model = nearsight.create_model("convit_tiny", num_classes=10)
    model = nearsight.create_model("convit_tiny", num_classes=10, weights="weights.pth")
    trained = nearsight.load("runs/x")  # trained("picture.jpg") says what is on it
    detector = nearsight.create_model("retinanet_resnet50", num_classes=3)

Names are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from .acceleration import accelerate, restore
    from .export import load
    from .models import list_models

__all__ = ["accelerate", "create_model", "list_models", "load", "restore"]


_ROOMS = {
    "accelerate": ".acceleration",
    "restore": ".acceleration",
    "list_models": ".models",
    "load": ".export.loading",
}


def create_model(
    name: str = "", *, weights: "str | Path" = "", download: bool = False, **arguments: Any
) -> "nn.Module":
    """Build a model by name; arguments go to its class (`num_classes`, `in_chans`, `img_size`, ablation switches…).

    `weights` start it: a run folder, a .safetensors or .pth file, a hub folder, or published ones (`timm:NAME`,
    `hub:OWNER/NAME`, `torchvision:NAME`), which are fetched only with `download`. Without a name the network is the
    one that the source is for. `model.weights_report.lines()` say what matched, was adapted, and stayed new.
    """
    if weights:
        from .weights import create_started

        return create_started(name, weights, download=download, **arguments)
    if download:
        raise ValueError("download=True has nothing to fetch: name the weights, as in weights='timm:convit_tiny'")
    from .models import create_model as build

    return build(name, **arguments)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
