"""The recipe of a classifier, and the named ones. A file and then flags may change any of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from nearsight.images.preprocessing import AUTO, INTERPOLATIONS, Preprocessing
from nearsight.recipes.fields import TINY, option
from nearsight.recipes.recipe import FetchFields, NormalisationFields, Recipe


@dataclass(frozen=True, kw_only=True)
class LabelFields:
    """Which classes there are, and the patches of a model."""

    label_column: str = option("", "column of a table that has the labels, where several may have them", change="never")
    first_classes: int = option(
        0, "keep only the first N classes in alphabetical order (0: all)", change="never", low=0
    )
    patch_size: int = option(0, "side of a patch in pixels (0: the model's own)", change="never", low=0)


@dataclass(frozen=True, kw_only=True)
class CropFields:
    """How a classifier's images are cropped, coloured and erased."""

    crop: str = option(
        "resized",
        "random crop: a resized region, a shift of the padded image, or none",
        choices=("resized", "pad", "none"),
    )
    crop_scale: float = option(0.08, "smallest area share of a resized crop", low=TINY, high=1)
    eval_crop: float = option(0.875, "share of the resized image that evaluation's centre crop keeps", low=TINY, high=1)
    randaugment_ops: int = option(2, "RandAugment operations per image (0: off)", low=0, high=100)
    randaugment_magnitude: float = option(9.0, "RandAugment magnitude, 0 to 10", low=0, high=10)
    randaugment_std: float = option(0.5, "standard deviation of the RandAugment magnitude", low=0)
    jitter: float = option(0.0, "colour jitter: brightness, contrast and saturation vary by this share", low=0, high=1)
    interpolation: str = option(
        AUTO,
        "how pixels between pixels are found in resizing; auto: as the weights want it, else bicubic",
        choices=(AUTO, *INTERPOLATIONS),
        change="never",
    )
    erasing: float = option(0.25, "probability of erasing a rectangle", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class MixingFields:
    """How a classifier's images and labels are mixed."""

    mixup: float = option(0.8, "mixup's Beta parameter (0: off)", low=0)
    cutmix: float = option(1.0, "cutmix's Beta parameter (0: off)", low=0)
    mix_probability: float = option(1.0, "probability that a pair is mixed at all", low=0, high=1)
    mix_switch: float = option(0.5, "probability of cutmix where both mixup and cutmix are on", low=0, high=1)
    label_smoothing: float = option(0.1, "label smoothing", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class BalanceFields:
    """Classes that have few images, and what selects the weights."""

    class_weights: str = option(
        "none",
        "weight of an image in the loss by how many its class has: all alike, one over the number, or over its root",
        choices=("none", "balanced", "inverse-sqrt"),
    )
    sampling: str = option(
        "shuffled",
        "images of an epoch: each once, or every class as often as the others",
        choices=("shuffled", "balanced"),
        change="never",
    )
    select_by: str = option(
        "top1",
        "what weights are selected by on val: top-1, balanced accuracy, macro F1 or the loss",
        choices=("top1", "balanced", "f1", "loss"),
        change="never",
    )


@dataclass(frozen=True, kw_only=True)
class DistillFields:
    """Learning from a teacher."""

    teacher: str = option(
        "", "teacher: weights as for --weights, such as a run; MODEL=FILE where they do not say their model"
    )
    distillation: str = option("none", "how to learn from the teacher", choices=("none", "hard", "soft"))
    distill_weight: float = option(0.5, "share of the distillation term in the loss", low=0, high=1)
    distill_temperature: float = option(3.0, "temperature of soft distillation", low=TINY)


@dataclass(frozen=True, kw_only=True)
class ClassificationRecipe(
    BalanceFields, DistillFields, MixingFields, CropFields, LabelFields, NormalisationFields, FetchFields, Recipe
):
    """One run of a classifier, completely. Its defaults are DeiT's recipe for ImageNet as ConViT used it."""

    task: ClassVar[str] = "classification"
    set_elsewhere: ClassVar[dict[str, str]] = {
        **Recipe.set_elsewhere,
        "num_classes": "it follows from the data (--first-classes keeps fewer)",
        "img_size": "--image-size sets it",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size and self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.sampling == "balanced" and self.class_weights != "none":
            raise ValueError(
                f"sampling balanced with class_weights {self.class_weights} would count rare classes twice; choose one"
            )
        if self.mixes and self.batch % 2:
            raise ValueError(f"mixup and cutmix work on pairs: batch {self.batch} must be even")
        if (self.distillation == "none") != (not self.teacher):
            raise ValueError("distillation and teacher belong together: give both, or neither")

    @property
    def selection(self) -> str:
        return self.select_by

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing.stated(self.mean, self.std, self.interpolation)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with one another."""
        return bool((self.mixup or self.cutmix) and self.mix_probability)

    @property
    def stated_options(self) -> dict[str, Any]:
        return {**self.model_options, **({"patch_size": self.patch_size} if self.patch_size else {})}


_DEIT = ClassificationRecipe(model="deit_tiny", ema=0.99996)
_CONVIT = _DEIT.with_changes(model="convit_tiny", ema=0.0, decay_positions=True)

CLASSIFICATION_RECIPES: dict[str, ClassificationRecipe] = {
    # Touvron et al. 2021, with the averaged weights of its public code.
    "deit": _DEIT,
    # d'Ascoli et al. 2021: DeiT's recipe without the average; decay on v_pos is the released code's.
    "convit": _CONVIT,
    # The "+" models of the same paper: 4e-4 at a batch of 512.
    "convit_plus": _CONVIT.with_changes(model="convit_tiny_plus", lr=4e-4, batch=512),
    # For some hundred to some thousand images and weights that were trained on more: docs/finetuning.md. Rates fall by
    # layer, the new head learns first, augmentation is light, and the run ends when validation stops improving.
    "finetune": ClassificationRecipe(
        model="",
        image_size=0,
        epochs=30.0,
        batch=64,
        lr=5e-4,
        lr_batch=64,
        warmup_epochs=1.0,
        warmup_lr=1e-6,
        min_lr=1e-6,
        layer_decay=0.8,
        head_rate=2.0,
        frozen_epochs=1.0,
        patience=10.0,
        clip_grad=1.0,
        drop_path=0.0,
        crop_scale=0.5,
        randaugment_ops=0,
        erasing=0.0,
        mixup=0.0,
        cutmix=0.0,
        repeats=1,
    ),
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
        norm_decay=0.9999,
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
