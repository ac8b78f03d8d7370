"""The named recipes of classification. A file and then flags may change any of their fields."""

from __future__ import annotations

from nearsight.classification.recipe import ClassificationRecipe

_DEIT = ClassificationRecipe(model="deit_tiny", ema=0.99996)
_CONVIT = _DEIT.with_changes(model="convit_tiny", ema=0.0, decay_positions=True)

CLASSIFICATION_RECIPES: dict[str, ClassificationRecipe] = {
    # Touvron et al. 2021, with the averaged weights of its public code.
    "deit": _DEIT,
    # d'Ascoli et al. 2021: DeiT's recipe without the average; decay on v_pos is the released code's.
    "convit": _CONVIT,
    # The "+" models of the same paper: 4e-4 at a batch of 512.
    "convit_plus": _CONVIT.with_changes(model="convit_tiny_plus", lr=4e-4, batch=512),
    # Ramachandran et al. 2019. The paper states neither weight decay, smoothing nor augmentation: 1e-4, 0.1 and crops
    # with flips are the ResNet customs of its time.
    "sasa": ClassificationRecipe(
        model="sasa_resnet26",
        optimizer="sgd",
        epochs=130.0,
        batch=4096,
        lr=1.6,
        lr_batch=4096,
        warmup_epochs=10.0,
        warmup_lr=0.0,
        min_lr=0.0,
        weight_decay=1e-4,
        ema=0.9999,
        drop_path=0.0,
        randaugment_ops=0,
        erasing=0.0,
        mixup=0.0,
        cutmix=0.0,
        repeats=1,
        channels_last=True,
    ),
    # For 1 000 to 50 000 images of 32 to 128 pixels: smaller batches make more updates of few images, and a hundred
    # epochs of them are too few for all of DeiT's augmentation (results/small_recipe.md).
    "small": ClassificationRecipe(
        model="convit_micro_64",
        image_size=64,
        epochs=100.0,
        batch=128,
        lr=1e-3,
        lr_batch=128,
        warmup_epochs=5.0,
        warmup_lr=1e-6,
        min_lr=1e-5,
        crop_scale=0.35,
        randaugment_ops=0,
        mix_probability=0.5,
        ema=0.995,
        clip_grad=1.0,
        repeats=1,
        eval_crop=1.0,
        log_every=10,
    ),
}
