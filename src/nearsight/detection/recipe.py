"""The recipe of a detector, and the named ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from nearsight.recipes.fields import TINY, option
from nearsight.recipes.recipe import FetchFields, NormalisationFields, Recipe
from nearsight.untrusted.limits import IMAGE_SIZE


@dataclass(frozen=True, kw_only=True)
class ViewFields:
    """How training pictures are taken from images with boxes."""

    image_height: int = option(
        0,
        "height of the training pictures (0: image_size, which is their width)",
        change="never",
        low=0,
        high=IMAGE_SIZE,
    )
    smallest_scale: float = option(0.8, "smallest scale of an image, 1 where it just fits the picture", low=TINY)
    largest_scale: float = option(1.2, "largest scale of an image", low=TINY)
    flip_vertical: float = option(
        0.0, "probability of a vertical flip, for images without a fixed orientation", low=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class DetectionRecipe(ViewFields, NormalisationFields, FetchFields, Recipe):
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

    @property
    def picture_size(self) -> tuple[int, int]:
        """Height and width that images are fitted into."""
        return self.image_height or self.image_size, self.image_size


_PAPER = DetectionRecipe(
    model="retinanet_sasa_resnet50_attention_heads",
    image_size=640,
    optimizer="sgd",
    epochs=150.0,
    batch=64,
    lr=0.12,
    lr_batch=64,
    warmup_epochs=1.0,
    warmup_lr=0.0,
    min_lr=0.0,
    weight_decay=1e-4,
    drop_path=0.0,
    repeats=1,
    channels_last=True,
    eval_every=5.0,
)

DETECTION_RECIPES: dict[str, DetectionRecipe] = {
    # Ramachandran et al. 2019, section 4.2. Not stated there: weight decay and the range of scales; 1e-4 and 0.8 to 1.2
    # are what RetinaNet and its multi-scale training customarily have.
    "retinanet": _PAPER,
    # For some hundred images, from scratch: AdamW with clipped gradients needs no pretrained backbone, smaller anchors
    # suit smaller pictures, and averaged weights smooth the last epochs.
    "retinanet_small": _PAPER.with_changes(
        model="retinanet_sasa_resnet26_convstem_attention",
        model_options={"channels": 128, "smallest_anchor": 16},
        image_size=320,
        optimizer="adamw",
        epochs=120.0,
        batch=16,
        lr=1e-3,
        lr_batch=16,
        warmup_epochs=5.0,
        warmup_lr=1e-6,
        min_lr=1e-6,
        weight_decay=0.05,
        clip_grad=1.0,
        ema=0.998,
        smallest_scale=0.7,
        largest_scale=1.3,
        eval_every=10.0,
    ),
}
