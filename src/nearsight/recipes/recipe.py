"""Everything that defines a run, as one frozen dataclass: the source of the command line, the YAML files and the docs.

The fields are flat (``--epochs``, ``epochs: 300``) and grouped by subject into the classes below. Numbers use 0 for
"off". Every check that needs no data and no model happens when a recipe is made, before any work.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from nearsight.recipes.fields import TINY, check_choices, check_range, check_types, option

_NOT_OPTIONS = {
    "num_classes": "it follows from the data (--first-classes keeps fewer)",
    "img_size": "--image-size sets it",
    "in_chans": "images have three channels",
}


@dataclass(frozen=True, kw_only=True)
class DataFields:
    """What is learned from."""

    task: str = option("classification", "what to learn", change="never", choices=("classification", "detection"))
    data: str = option("", "image folder, dataset name, npz, parquet or shards", change="never")
    fraction: float = option(
        1.0, "share of each class's training images to keep; epochs grow by 1/fraction", change="never"
    )
    first_classes: int = option(0, "keep only the first N classes in alphabetical order (0: all)", change="never")
    val_fraction: float = option(
        0.1, "share of each class held out for validation where the data has no val split", change="never"
    )
    download: bool = option(False, "known datasets may be fetched from the network", change="free")
    data_seed: int = option(0, "seed of the splits and of the images that fraction keeps", change="never")


@dataclass(frozen=True, kw_only=True)
class ModelFields:
    """What learns."""

    model: str = option(
        "convit_tiny", "name of the model (nearsight models lists them; timm:NAME is one of timm)", change="never"
    )
    model_options: dict[str, Any] = option(  # noqa: RUF009 - the helper makes a field with a factory
        dict, "further arguments of the model, such as --model-options.locality_strength 2", change="never"
    )
    image_size: int = option(224, "side of the training images in pixels", change="never")
    patch_size: int = option(0, "side of a patch in pixels (0: the model's own)", change="never")
    drop_path: float = option(0.1, "probability of dropping the last block's branch; grows linearly with depth")
    init_from: str = option("", "weights to start from: a run folder or a .safetensors file", change="never")


@dataclass(frozen=True, kw_only=True)
class AugmentFields:
    """How training images are varied."""

    crop: str = option(
        "resized",
        "random crop: a resized region, a shift of the padded image, or none",
        choices=("resized", "pad", "none"),
    )
    crop_scale: float = option(0.08, "smallest area share of a resized crop")
    flip: float = option(0.5, "probability of a horizontal flip")
    randaugment_ops: int = option(2, "RandAugment operations per image (0: off)")
    randaugment_magnitude: float = option(9.0, "RandAugment magnitude, 0 to 10")
    randaugment_std: float = option(0.5, "standard deviation of the RandAugment magnitude")
    erasing: float = option(0.25, "probability of erasing a rectangle")
    mixup: float = option(0.8, "mixup's Beta parameter (0: off)")
    cutmix: float = option(1.0, "cutmix's Beta parameter (0: off)")
    mix_probability: float = option(1.0, "probability that a pair is mixed at all")
    mix_switch: float = option(0.5, "probability of cutmix where both mixup and cutmix are on")
    label_smoothing: float = option(0.1, "label smoothing")
    repeats: int = option(3, "repeated augmentation: views of an image in one batch (1: off)", change="never")
    jitter: float = option(0.0, "colour jitter: brightness, contrast and saturation vary by this share")
    eval_crop: float = option(0.875, "share of the resized image that evaluation's centre crop keeps")


@dataclass(frozen=True, kw_only=True)
class DetectionFields:
    """How training pictures are taken from images with boxes."""

    image_height: int = option(
        0, "detection: height of the pictures (0: image_size, which is their width)", change="never"
    )
    smallest_scale: float = option(0.8, "detection: smallest scale of an image, 1 where it just fits the picture")
    largest_scale: float = option(1.2, "detection: largest scale of an image")
    flip_vertical: float = option(0.0, "detection: probability of a vertical flip, for images without an up")


@dataclass(frozen=True, kw_only=True)
class OptimFields:
    """How weights move."""

    optimizer: str = option("adamw", "AdamW, or SGD with Nesterov momentum", choices=("adamw", "sgd"), change="never")
    epochs: float = option(300.0, "passes over the training set (before 1/fraction)")
    batch: int = option(
        1024, "images per update over all processes; the machine only decides how it is cut", change="never"
    )
    lr: float = option(5e-4, "peak learning rate at a batch of lr_batch")
    lr_batch: int = option(512, "batch that lr is stated for; the rate scales linearly with batch (0: no scaling)")
    warmup_epochs: float = option(5.0, "epochs of linear warm-up")
    warmup_lr: float = option(1e-6, "learning rate at the start of the warm-up")
    min_lr: float = option(1e-5, "learning rate at the end of the cosine")
    weight_decay: float = option(0.05, "weight decay of matrices and kernels")
    momentum: float = option(0.9, "SGD's momentum, AdamW's first beta")
    beta2: float = option(0.999, "AdamW's second beta")
    decay_positions: bool = option(
        False, "also decay v_pos, as the released ConViT does (it shrinks the locality strength)"
    )
    decay_gates: bool = option(False, "also decay the gates")
    clip_grad: float = option(0.0, "largest norm of the gradient (0: no clipping)")
    ema: float = option(0.0, "decay of the averaged weights (0: no average)")


@dataclass(frozen=True, kw_only=True)
class DistillFields:
    """Learning from a teacher."""

    teacher: str = option("", "teacher: a timm name (timm:NAME), one of our models, or a run folder")
    distillation: str = option("none", "how to learn from the teacher", choices=("none", "hard", "soft"))
    distill_weight: float = option(0.5, "share of the distillation term in the loss")
    distill_temperature: float = option(3.0, "temperature of soft distillation")


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """How the run is carried out."""

    seed: int = option(0, "seed of initialisation, order, augmentation and dropout", change="never")
    select: str = option(
        "best",
        "weights that are kept and tested: best on val (of equals the later), or the last",
        choices=("best", "last"),
        change="free",
    )
    eval_every: float = option(1.0, "epochs between evaluations", change="free")
    log_every: int = option(10, "steps per line of metrics.jsonl", change="never")
    save_every: int = option(0, "steps between checkpoints, besides those at evaluations (0: by time)", change="free")
    save_minutes: float = option(5.0, "minutes between checkpoints, besides those at evaluations", change="free")
    keep: int = option(2, "checkpoints to keep besides the best", change="free")
    nonfinite_limit: int = option(3, "non-finite steps in a row before the run stops", change="free")
    bad_images: float = option(0.001, "share of unreadable images above which the run stops", change="free")
    tensorboard: bool = option(False, "also write TensorBoard files", change="free")
    wandb: bool = option(False, "also log to Weights & Biases", change="free")
    report: bool = option(True, "write plots and report.html at the end", change="free")


@dataclass(frozen=True, kw_only=True)
class MachineFields:
    """How the machine is used; none of these changes what is learned."""

    device: str = option("auto", "cpu, cuda, cuda:1, mps; auto takes the best there is", change="free")
    precision: str = option(
        "auto",
        "arithmetic of the model; auto is bf16 on GPUs that have it, else fp32",
        change="override",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    micro_batch: int = option(0, "images per forward pass and process (0: the whole share of the batch)", change="free")
    batch_auto: bool = option(False, "halve the micro-batch when memory runs out on the first step", change="free")
    workers: int = option(2, "data-loading processes, when images do not live on the device", change="free")
    resident: str = option(
        "auto",
        "keep the images on the device; auto does when they fit easily",
        change="free",
        choices=("auto", "on", "off"),
    )
    compile: str = option("auto", "torch.compile; auto does on CUDA", change="free", choices=("auto", "on", "off"))
    graphs: str = option(
        "auto",
        "capture the whole step in a CUDA graph; auto does in one CUDA process with resident data",
        change="free",
        choices=("auto", "on", "off"),
    )
    channels_last: bool = option(False, "channels-last memory, for convolutional models", change="free")
    sync_batch_norm: bool = option(False, "share batch-norm statistics between processes", change="free")
    fsdp: bool = option(
        False, "shard parameters over processes (FSDP2) for models that do not fit one device", change="free"
    )
    deterministic: bool = option(
        False, "deterministic kernels: bitwise equal resumes on a GPU too, slower", change="free"
    )


@dataclass(frozen=True, kw_only=True)
class Recipe(
    MachineFields, RunFields, DistillFields, OptimFields, DetectionFields, AugmentFields, ModelFields, DataFields
):
    """One run, completely. Its defaults are DeiT's recipe for ImageNet as ConViT used it."""

    def __post_init__(self) -> None:
        check_types(self)
        check_choices(self)
        check_range(
            self, 0, 1, "drop_path", "flip", "erasing", "mix_probability", "mix_switch", "label_smoothing", "jitter"
        )
        check_range(self, 0, 1, "flip_vertical", "momentum", "beta2", "ema", "distill_weight", "bad_images")
        check_range(self, 0, float("inf"), "mixup", "cutmix", "lr_batch", "warmup_epochs", "warmup_lr", "min_lr")
        check_range(self, 0, float("inf"), "weight_decay", "clip_grad", "save_every", "first_classes", "workers")
        check_range(
            self,
            0,
            float("inf"),
            "micro_batch",
            "seed",
            "data_seed",
            "patch_size",
            "randaugment_ops",
            "randaugment_std",
        )
        check_range(self, 0, 10, "randaugment_magnitude")
        check_range(self, 1, float("inf"), "batch", "image_size", "repeats", "log_every", "keep", "nonfinite_limit")
        check_range(self, TINY, float("inf"), "lr", "epochs", "eval_every", "save_minutes", "distill_temperature")
        check_range(self, TINY, 1, "fraction", "crop_scale", "eval_crop")
        check_range(self, 0, 0.9, "val_fraction")
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        for name in self.model_options:
            # A detector's backbone has an img_size of its own, whatever the size of the pictures.
            set_elsewhere = name in _NOT_OPTIONS and not (name == "img_size" and self.task == "detection")
            if not isinstance(name, str) or set_elsewhere:
                why = _NOT_OPTIONS.get(name, "an argument's name is a word")
                raise ValueError(f"model_options must leave out {name!r}: {why}")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs ({self.warmup_epochs:g}) must be shorter than epochs ({self.epochs:g}); "
                "set --warmup-epochs"
            )
        if self.patch_size and self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if (self.mixup or self.cutmix) and self.mix_probability and self.batch % 2:
            raise ValueError(f"mixup and cutmix work on pairs: batch {self.batch} must be even")
        if (self.distillation == "none") != (not self.teacher):
            raise ValueError("distillation and teacher belong together: give both, or neither")
        if self.micro_batch and self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")

    @property
    def peak_lr(self) -> float:
        """The learning rate after scaling with the batch."""
        return self.lr * self.batch / self.lr_batch if self.lr_batch else self.lr

    @property
    def total_epochs(self) -> float:
        """Epochs over the kept images: fewer images are seen more often, so that the number of updates stays."""
        return self.epochs / self.fraction

    def with_changes(self, **changes: Any) -> Recipe:
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """Fields in which two recipes differ: name → (old, new)."""
    before, after = old.as_dict(), new.as_dict()
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def change_rule(name: str) -> str:
    """What resuming may do with field ``name``: ``never``, ``override`` or ``free``."""
    return {field.name: field.metadata["change"] for field in dataclasses.fields(Recipe)}[name]
