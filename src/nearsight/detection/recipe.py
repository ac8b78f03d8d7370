"""The recipe of a detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from nearsight.recipes.fields import TINY, option
from nearsight.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ViewFields:
    """How training pictures are taken from images with boxes."""

    image_height: int = option(
        0, "height of the training pictures (0: image_size, which is their width)", change="never", low=0
    )
    smallest_scale: float = option(0.8, "smallest scale of an image, 1 where it just fits the picture", low=TINY)
    largest_scale: float = option(1.2, "largest scale of an image", low=TINY)
    flip_vertical: float = option(0.0, "probability of a vertical flip, for images without an up", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class DetectionRecipe(ViewFields, Recipe):
    """One run of a detector, completely."""

    task: ClassVar[str] = "detection"

    @classmethod
    def updated(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """`attention` was that of pyramid and heads, and the backbone's had another name."""
        now = {"attention": "head_attention", "backbone_attention": "attention"}
        options = fields.get("model_options") or {}
        if isinstance(options, dict):
            fields = {**fields, "model_options": {now.get(name, name): value for name, value in options.items()}}
        return super().updated(fields)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smallest_scale > self.largest_scale:
            raise ValueError(
                f"smallest_scale ({self.smallest_scale:g}) must not be above largest_scale ({self.largest_scale:g})"
            )
