"""Named recipes of detection."""

from __future__ import annotations

from nearsight.detection.recipe import DetectionRecipe

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
