"""Vision models that start near-sighted and learn how far to look.

    import nearsight
    model = nearsight.create_model("convit_tiny", num_classes=10)
    detector = nearsight.create_model("retinanet_resnet50", num_classes=3)

Everything is loaded when first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["create_model", "list_models"]


def create_model(name: str, **arguments: Any) -> "nn.Module":
    """Build a classifier or a detector by name; arguments are those of its class (`num_classes`, `in_chans`…)."""
    from nearsight import models
    from nearsight.detection.retinanet import create_detector

    create = create_detector if str(name).startswith("retinanet") else models.create_model
    return create(name, **arguments)


def list_models(pattern: str = "*") -> list[str]:
    """Names of all classifiers and detectors that match a shell pattern, in alphabetical order."""
    from nearsight import models
    from nearsight.detection.retinanet import list_detectors

    return sorted([*models.list_models(pattern), *list_detectors(pattern)])
