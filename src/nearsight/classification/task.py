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
from nearsight.classification.distillation import BothHeads, ask_teacher, distillation_term, load_teacher
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.labelled import LabelledImages, LabelledSplits
from nearsight.engine.data import DataTask, check_batch
from nearsight.engine.device import compiles
from nearsight.engine.distributed import World
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.mixing import BatchMix, Mixing
from nearsight.reports.page import Page
from nearsight.runs.layout import CLASSES, TRAIN_IMAGES

_FEW_IMAGES = 100
_NAMED = 5
_LARGEST_GROUP = 16  # images that share a mixing decision; small enough for any sensible number of processes


class Targets(NamedTuple):
    """Labels [B] or label distributions [B, classes], and the teacher's logits where there is one."""

    labels: Tensor
    teacher: Tensor | None


class ClassificationTask(DataTask):
    """Classification by any of our models or timm's; top-1 accuracy selects the weights."""

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
        self._pixels: tuple[Tensor, Tensor] | None = None

    def describe(self) -> list[str]:
        warning = validation_warning(self.data.splits.val)
        return [*super().describe(), *([warning] if warning else [])]

    def files(self) -> dict[str, str]:
        files = {CLASSES: "\n".join(self.data.classes) + "\n"}
        if self.recipe.fraction < 1:
            files[TRAIN_IMAGES] = "\n".join(self.data.splits.train.names) + "\n"
        return files

    def build_model(self) -> nn.Module:
        return build_classifier(self.recipe, self.num_classes)

    def training_module(self, model: nn.Module) -> nn.Module:
        if self.recipe.teacher and getattr(model, "distilled", False):
            return BothHeads(model)
        return super().training_module(model)

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        self._context = context
        for module in filter(None, (self._augment, self._mix, self._teacher)):
            module.to(context.device)
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
        loss = F.cross_entropy(by_label, targets.labels, label_smoothing=smoothing)
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
        sums = torch.zeros(4, dtype=torch.float64, device=context.device)  # images, loss, right, right among five
        deep = min(5, self.num_classes)
        all_labels = torch.from_numpy(self.data.split(split).labels).to(context.device)
        for logits, indices in self.logits(model, split, context):
            labels = all_labels[indices]
            right = logits.topk(deep, dim=1).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            counts = (labels.new_tensor(len(right)), loss, right[:, 0].sum(), right.any(dim=1).sum())
            sums += torch.stack([count.double() for count in counts])
        World(context.rank, context.world_size).sum(sums)
        count, loss_sum, top1, top5 = sums.tolist()
        yield "top1", 100 * top1 / count
        if self.num_classes > 5:
            yield "top5", 100 * top5 / count
        yield "loss", loss_sum / count

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
