"""Image classification as a task for the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.classification.data import ImageData, open_splits
from nearsight.classification.distillation import (
    BothHeads,
    ask_teacher,
    distillation_term,
    load_teacher,
    weights_checksum,
)
from nearsight.classification.measures import ClassCounts
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.labelled import LabelledImages, LabelledSplits
from nearsight.engine.data import DataTask, check_batch
from nearsight.engine.device import compiles
from nearsight.engine.distributed import World
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.mixing import BatchMix, Mixing
from nearsight.reports.page import Page
from nearsight.runs.layout import CLASSES, TEACHER, TRAIN_IMAGES

_FEW_IMAGES = 100
_NAMED = 5
_LARGEST_GROUP = 16  # images that share a mixing decision; small enough for any sensible number of processes


class Targets(NamedTuple):
    """Labels [B] or label distributions [B, classes], and the teacher's logits where there is one."""

    labels: Tensor
    teacher: Tensor | None


class Measured(NamedTuple):
    """Of a split: counts of classes, the mean loss, and the percentage that is right among five guesses."""

    counts: ClassCounts
    loss: float
    top5: float
    labels: np.ndarray
    """Of this process's share of the images, as `predicted` is."""
    predicted: np.ndarray

    @property
    def values(self) -> list[tuple[str, float]]:
        counts = self.counts
        values = [("top1", counts.top1), ("balanced", counts.balanced), ("loss", self.loss), ("f1", counts.macro_f1)]
        return [*values, ("top5", self.top5)] if len(counts.shown) > 5 else values


class ClassificationTask(DataTask):
    """Classification by any of our models or timm's."""

    recipe: ClassificationRecipe
    data: ImageData

    def __init__(
        self, recipe: ClassificationRecipe, splits: LabelledSplits | None = None, *, fit_batch: bool = False
    ) -> None:
        if splits is None:
            splits = open_splits(recipe)
            recipe = check_batch(recipe, splits, fit=fit_batch)
        self.recipe = recipe
        self.data = ImageData(recipe, splits)
        self.num_classes = len(self.data.classes)
        if self.num_classes < 2:
            raise ValueError("classification needs at least two classes; keep more with --first-classes")
        self._teacher = load_teacher(recipe, self.data.classes) if recipe.teacher else None
        self._augment = self.data.augmentation()
        self._class_weights = self.data.class_weights()
        self._mix: BatchMix | None = None
        if recipe.mixes:
            self.batch_multiple = math.gcd(recipe.batch, _LARGEST_GROUP)
            mixing = Mixing(
                mixup=recipe.mixup,
                cutmix=recipe.cutmix,
                prob=recipe.mix_probability,
                switch=recipe.mix_switch,
                smoothing=recipe.label_smoothing,
                group=self.batch_multiple,
            )
            self._mix = BatchMix(mixing, self.num_classes)
        self._started: list[str] = []
        """What became of the weights that it starts from."""
        self._pixels: tuple[Tensor, Tensor] | None = None

    def describe(self) -> list[str]:
        warning = validation_warning(self.data.splits.val)
        return [*super().describe(), *([warning] if warning else []), *self._started]

    def fingerprint(self) -> dict[str, Any]:
        data = super().fingerprint()
        return data if self._teacher is None else {**data, TEACHER: weights_checksum(self._teacher)}

    def files(self) -> dict[str, str]:
        files = {CLASSES: "\n".join(self.data.classes) + "\n"}
        if self.recipe.fraction < 1:
            files[TRAIN_IMAGES] = "\n".join(self.data.splits.train.names) + "\n"
        return files

    def build_model(self) -> nn.Module:
        recipe = self.recipe
        model = build_classifier(recipe, self.num_classes, classes=self.data.classes, download=recipe.download)
        self._started = model.weights_report.lines() if recipe.weights else []  # type: ignore[operator, union-attr]
        return model

    def training_module(self, model: nn.Module) -> nn.Module:
        if self.recipe.teacher and getattr(model, "distilled", False):
            return BothHeads(model)
        return super().training_module(model)

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        self._context = context
        for module in filter(None, (self._augment, self._mix, self._teacher)):
            module.to(context.device)
        if self._class_weights is not None:
            self._class_weights = self._class_weights.to(context.device)
        if compiles(self.recipe, context.device):
            self._augment.compile(dynamic=False)  # hundreds of small operations become a few
            if self._mix is not None:
                self._mix.compile()  # the place of a micro-batch in its batch may vary
        if self.data.resident:
            self._pixels = self.data.on_device("train", context.device)
        return super().feed(start_step, context)

    def prepare(self, inputs: Inputs, step: Tensor, first: int) -> Batch:
        if self._pixels is not None:
            pixels, all_labels = self._pixels
            images, labels = pixels[inputs["indices"]], all_labels[inputs["indices"]]
        else:
            images, labels = inputs["images"], inputs["labels"]
        if "keys" in inputs:
            images = self._augment(images, inputs["keys"])
        if self._mix is not None:
            images, labels = self._mix(images, labels, self.recipe.seed, step, first)
        teacher = None if self._teacher is None else ask_teacher(self._teacher, images, self._context)
        return Batch(images, Targets(labels, teacher))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        by_label, by_teacher = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        targets: Targets = batch.targets
        # Mixed targets are smoothed already.
        smoothing = 0.0 if self._mix is not None else self.recipe.label_smoothing
        weights = self._class_weights
        if weights is None:
            loss = F.cross_entropy(by_label, targets.labels, label_smoothing=smoothing)
        else:  # torch's own mean is over the weights of a micro-batch: it would depend on how the batch is cut
            losses = F.cross_entropy(by_label, targets.labels, weights, reduction="none", label_smoothing=smoothing)
            loss = losses.mean()
        if targets.teacher is None:
            return loss
        share = self.recipe.distill_weight
        return (1 - share) * loss + share * distillation_term(by_teacher, targets.teacher, self.recipe)

    @torch.no_grad()
    def logits(self, model: nn.Module, split: str, context: ProcessContext) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of a split: float32 logits [B, classes], and the images' places in the split [B]."""
        model.eval()
        for batch in self.data.eval_batches(split, context):
            with context.autocast():
                logits = model(batch.images)
            yield logits.float(), batch.indices

    def evaluate(self, model: nn.Module, split: str, context: ProcessContext) -> Iterable[tuple[str, float]]:
        return self.measure(model, split, context).values

    def measure(self, model: nn.Module, split: str, context: ProcessContext) -> Measured:
        """Every process has a share of the split."""
        sums = torch.zeros(2, dtype=torch.float64, device=context.device)  # loss, right among five
        all_labels = torch.from_numpy(self.data.split(split).labels).to(context.device)
        pairs = []
        for logits, indices in self.logits(model, split, context):
            labels = all_labels[indices]
            best = logits.topk(min(5, self.num_classes), dim=1).indices
            right = (best == labels[:, None]).sum()
            sums += torch.stack([F.cross_entropy(logits, labels, reduction="sum").double(), right.double()])
            pairs.append(torch.stack([labels, best[:, 0]]))
        own = torch.cat(pairs, dim=1).cpu().numpy() if pairs else np.empty((2, 0), dtype=np.int64)
        by_class = torch.from_numpy(ClassCounts.of(own[0], own[1], self.num_classes).columns).to(context.device)
        world = World(context.rank, context.world_size)
        world.sum(sums)
        world.sum(by_class)
        counts = ClassCounts(*by_class.cpu().numpy())
        loss, among_five = (sums / counts.shown.sum()).tolist()
        return Measured(counts, loss, 100 * among_five, own[0], own[1])

    def remarks(self, model: nn.Module, context: ProcessContext) -> list[str]:
        split = "test" if self.has_split("test") else "val"
        return [f"{split} by class: {self.measure(model, split, context).counts.words(self.data.classes)}"]

    def report_pages(self, model: nn.Module, records: list[dict[str, Any]], context: ProcessContext) -> list[Page]:
        from nearsight.classification.report import classification_pages

        return classification_pages(model, self, records, context)


def validation_warning(images: LabelledImages) -> str | None:
    """A sentence where a validation set is small, or lacks a class: how far its accuracy can be trusted."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    lacking = [name for name, count in zip(images.classes, counts, strict=True) if not count]
    if len(images) >= _FEW_IMAGES and not lacking:
        return None
    shown = ", ".join(lacking[:_NAMED]) + (f" and {len(lacking) - _NAMED} more classes" if lacking[_NAMED:] else "")
    # The error of a share p of n images is √(p(1 − p)/n), largest at one half.
    error = 100 * math.sqrt(0.25 / len(images))
    return (
        f"warning: {len(images)} validation images{f', none of {shown}' if lacking else ''}: accuracy on them has a "
        f"standard error of up to {error:.1f} points, and smaller differences are chance; add images, or raise "
        "--val-fraction where they are taken from the training set"
    )
