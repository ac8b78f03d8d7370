"""What defines a run of any task, as one frozen dataclass: the source of the command line, the YAML files and the docs.

The fields are flat (``--epochs``, ``epochs: 300``) and grouped by subject into the classes below. Numbers use 0 for
"off". A task adds its own fields in a subclass. Every check that needs no data and no model happens when a recipe is
made, before any work.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from nearsight.images.preprocessing import AUTO, Preprocessing
from nearsight.recipes.fields import TINY, check_fields, check_numbers, option
from nearsight.recipes.foreign import check_model
from nearsight.tasks import task_kind
from nearsight.untrusted.limits import IMAGE_SIZE

R = TypeVar("R", bound="Recipe")


@dataclass(frozen=True, kw_only=True)
class DataFields:
    """The data."""

    data: str = option("", "what to learn from: a folder, a file, an archive or the name of a dataset", change="never")
    fraction: float = option(
        1.0,
        "share of the training images to keep (of each class); an epoch still shows as many samples as all of them",
        change="never",
        low=TINY,
        high=1,
    )
    val_fraction: float = option(
        0.1,
        "share of the training images held out for validation, of each class, unless the data's own val split is taken",
        change="never",
        low=0,
        high=0.9,
    )
    val_from: str = option(
        "data",
        "val is the data's own where it has one, or a share of train (the data's own is then test where it has none)",
        choices=("data", "train"),
        change="never",
    )
    data_seed: int = option(
        0, "seed of the splits and of the images that fraction keeps", change="never", low=0, high=2**63
    )


@dataclass(frozen=True, kw_only=True)
class ModelFields:
    """The model."""

    model: str = option(
        "convit_tiny", "name of the model; the verb `models` lists them (empty: that of the weights)", change="never"
    )
    model_options: dict[str, Any] = option(  # noqa: RUF009 - the helper makes a field with a factory
        dict, "further arguments of the model, such as --model-options.locality-strength 2", change="never"
    )
    image_size: int = option(
        224, "side of the training images in pixels (0: that of the weights)", change="never", low=0, high=IMAGE_SIZE
    )
    drop_path: float = option(
        0.1, "probability of dropping the last block's branch; grows linearly with depth", low=0, high=1
    )
    weights: str = option(
        "",
        "weights to start from: a run, a .safetensors or .pth file, a hub folder, timm:NAME, hub:OWNER/NAME or "
        "torchvision:NAME",
        change="never",
    )


@dataclass(frozen=True, kw_only=True)
class NormalisationFields:
    """How the model is shown pictures. For tasks that follow it."""

    mean: str = option(
        AUTO,
        "mean of the channels, such as 0.5,0.5,0.5 (auto: as the weights want it, else ImageNet's)",
        change="never",
    )
    std: str = option(AUTO, "spread of the channels that is divided by (auto: the same)", change="never")

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing.stated(self.mean, self.std)


@dataclass(frozen=True, kw_only=True)
class FetchFields:
    """The network."""

    download: bool = option(
        False, "weights and known datasets may be fetched from the network", change="free", connects=True
    )


@dataclass(frozen=True, kw_only=True)
class AugmentFields:
    """Augmentation of the training images."""

    flip: float = option(0.5, "probability of a horizontal flip", low=0, high=1)
    repeats: int = option(
        3, "repeated augmentation: views of an image in one batch (1: off)", change="never", low=1, high=1000
    )


@dataclass(frozen=True, kw_only=True)
class OptimFields:
    """Optimisation."""

    optimizer: str = option("adamw", "AdamW, or SGD with Nesterov momentum", choices=("adamw", "sgd"), change="never")
    epochs: float = option(300.0, "passes over the training set (before fraction)", low=TINY)
    batch: int = option(
        1024, "images per update over all processes; the machine only decides how it is cut", change="never", low=1
    )
    lr: float = option(5e-4, "peak learning rate at a batch of lr_batch", low=TINY)
    lr_batch: int = option(
        512, "batch that lr is stated for; the rate scales linearly with batch (0: no scaling)", low=0
    )
    warmup_epochs: float = option(5.0, "epochs of linear warm-up", low=0)
    warmup_lr: float = option(1e-6, "learning rate at the start of the warm-up", low=0)
    min_lr: float = option(1e-5, "learning rate at the end of the cosine", low=0)
    weight_decay: float = option(0.05, "weight decay of matrices and kernels", low=0)
    momentum: float = option(0.9, "SGD's momentum, AdamW's first beta", low=0, high=1)
    beta2: float = option(0.999, "AdamW's second beta", low=0, high=1)
    decay_positions: bool = option(
        False, "also decay v_pos, as the released ConViT does (it shrinks the locality strength)"
    )
    decay_gates: bool = option(False, "also decay the gates")
    clip_grad: float = option(0.0, "largest norm of the gradient (0: no clipping)", low=0)
    norm_decay: float = option(
        0.0, "decay of batch norm's running statistics at each step (0: the layers' own, mostly 0.9)", low=0, high=1
    )
    layer_decay: float = option(
        1.0,
        "learning rate of a layer as a share of the next one's, from the head down (1: all alike)",
        low=TINY,
        high=1,
    )
    head_rate: float = option(1.0, "learning rate of the head as a multiple of the last block's", low=TINY)
    frozen_epochs: float = option(
        0.0,
        "epochs at first in which the head alone learns; then the body warms up in warmup_epochs (with as many as "
        "epochs the head alone learns throughout)",
        low=0,
    )
    ema: float = option(0.0, "decay of the averaged weights (0: no average)", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """How the run is carried out."""

    seed: int = option(0, "seed of initialisation, order, augmentation and dropout", change="never", low=0, high=2**63)
    select: str = option(
        "best",
        "weights that are kept and tested: best on val (of equal ones the later), or the last",
        choices=("best", "last"),
        change="free",
        compared=True,
    )
    patience: float = option(
        0.0,
        "epochs without a better validation after which the run ends (0: it takes all of its epochs)",
        low=0,
    )
    eval_every: float = option(1.0, "epochs between evaluations", change="free", low=TINY, compared=True)
    log_every: int = option(10, "steps per line of metrics.jsonl", change="never", low=1)
    save_every: int = option(
        0, "steps between checkpoints, besides those at evaluations (0: by time)", change="free", low=0
    )
    save_minutes: float = option(
        5.0, "minutes between checkpoints, besides those at evaluations", change="free", low=TINY
    )
    keep: int = option(2, "checkpoints to keep besides the best", change="free", low=1)
    nonfinite_limit: int = option(3, "non-finite steps in a row before the run stops", change="free", low=1)
    bad_images: float = option(
        0.001, "share of unreadable images above which the run stops", change="free", low=0, high=1
    )
    tensorboard: bool = option(False, "also write TensorBoard files", change="free")
    wandb: bool = option(False, "also log to Weights & Biases", change="free", connects=True)
    report: bool = option(True, "write plots and report.html at the end", change="free")


@dataclass(frozen=True, kw_only=True)
class MachineFields:
    """How the machine is used; none of these changes what is learned."""

    device: str = option("auto", "cpu, cuda, cuda:1, mps; auto takes the best there is", change="free")
    precision: str = option(
        "auto",
        "precision of the forward pass; auto is bf16 on GPUs that have it, else fp32",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    micro_batch: int = option(
        0, "images per forward pass and process (0: the whole share of the batch)", change="free", low=0, compared=True
    )
    batch_auto: bool = option(False, "halve the micro-batch when memory runs out on the first step", change="free")
    workers: int = option(
        2, "data-loading processes, when images do not live on the device", change="free", low=0, high=1024
    )
    resident: str = option(
        "auto",
        "keep the images on the device; auto does when they fit easily",
        change="free",
        choices=("auto", "on", "off"),
        compared=True,
    )
    compile: str = option("auto", "torch.compile; auto does on CUDA", change="free", choices=("auto", "on", "off"))
    graphs: str = option(
        "auto",
        "capture the whole step in a CUDA graph; auto does in one CUDA process with resident data",
        change="free",
        choices=("auto", "on", "off"),
    )
    channels_last: bool = option(False, "channels-last memory, for convolutional models", change="free")
    sync_batch_norm: bool = option(False, "share batch-norm statistics between processes", change="free", compared=True)
    fsdp: bool = option(
        False, "shard parameters over processes (FSDP2) for models that do not fit one device", change="free"
    )
    deterministic: bool = option(
        False, "deterministic kernels: bitwise equal resumes on a GPU too, slower", change="free"
    )


@dataclass(frozen=True, kw_only=True)
class Recipe(MachineFields, RunFields, OptimFields, AugmentFields, ModelFields, DataFields):
    """What the recipes of all tasks share. Defaults are DeiT's for ImageNet as ConViT used them.

    The engine follows the fields of optimisation, run and machine. A task follows those of data, model and
    augmentation; `engine.data.TaskData` follows `repeats`, `resident`, `workers` and `bad_images` for it.
    """

    task: ClassVar[str] = ""
    """Name of the task whose recipe a subclass is."""
    set_elsewhere: ClassVar[dict[str, str]] = {
        "num_classes": "it follows from the data",
        "in_chans": "images have three channels",
    }
    """Arguments of models that `model_options` must leave out, and why."""

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.preprocessing  # raises where it is misspelled
        for name in self.model_options:
            if not isinstance(name, str) or name in self.set_elsewhere:
                why = self.set_elsewhere.get(name, "an argument's name is a word")
                raise ValueError(f"model_options must leave out {name!r}: {why}")
        check_model(self.model, self.model_options)
        check_numbers("model_options", self.model_options)
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs ({self.warmup_epochs:g}) must be shorter than epochs ({self.epochs:g}); "
                "set --warmup-epochs"
            )
        if self.micro_batch and self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")

    @property
    def selection(self) -> str:
        """The evaluated value that decides which weights are kept: the larger the better, but for `loss`."""
        return task_kind(self.task).selection

    @property
    def peak_lr(self) -> float:
        """The learning rate after scaling with the batch."""
        return self.lr * self.batch / self.lr_batch if self.lr_batch else self.lr

    @property
    def preprocessing(self) -> Preprocessing:
        """How the model is shown pictures: as ImageNet's, in tasks that do not say otherwise."""
        return Preprocessing()

    @property
    def stated_options(self) -> dict[str, Any]:
        """The model's arguments that differ from those of its name."""
        return self.model_options

    def with_changes(self: R, **changes: Any) -> R:
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """The task and every field."""
        return {"task": self.task, **dataclasses.asdict(self)}

    @classmethod
    def change_rule(cls, name: str) -> str:
        """What resuming may do with field ``name``: ``never``, ``override`` or ``free``."""
        return "never" if name == "task" else field_of(cls, name).metadata["change"]

    @classmethod
    def is_compared(cls, name: str) -> bool:
        """Whether runs that differ in field ``name`` are two settings."""
        return name not in ("task", "seed") and field_of(cls, name).metadata["compared"]

    @classmethod
    def updated(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a recipe of the first format, in which recipes of all tasks had all fields, as they are now."""
        own = field_names(cls)
        return {name: value for name, value in fields.items() if name in own}


def field_names(kind: type[Recipe]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def field_of(kind: type[Recipe], name: str) -> dataclasses.Field:
    return next(field for field in dataclasses.fields(kind) if field.name == name)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """Fields in which two recipes differ: name → (old, new); of recipes of two tasks, the task."""
    if old.task != new.task:
        return {"task": (old.task, new.task)}
    before, after = old.as_dict(), new.as_dict()
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}
