"""Labelled images for training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.folder import UnknownData
from nearsight.datasets.labelled import LabelledImages, LabelledSplits, first_classes, per_class_fraction
from nearsight.datasets.loading import LabelledBatches, load_all
from nearsight.datasets.sources import open_data
from nearsight.engine.data import EvalBatch, TaskData
from nearsight.engine.task import Inputs, ProcessContext
from nearsight.images.augmentation import Augment, BatchAugment, TrainCrop
from nearsight.images.epochs import EpochOrder, balanced_order, device_batches
from nearsight.images.transforms import BatchEval, EvalTransform
from nearsight.tasks import said_by_others

_EVAL_BATCH = 256


def open_splits(recipe: ClassificationRecipe) -> LabelledSplits:
    """Open the data source; keep the `first_classes` and the `fraction` that the recipe names."""
    try:
        splits = open_data(
            recipe.data,
            seed=recipe.data_seed,
            val_fraction=recipe.val_fraction,
            val_from=recipe.val_from,
            label_column=recipe.label_column,
            download=recipe.download,
        )
    except UnknownData as error:
        raise ValueError(f"{error}{said_by_others(recipe.task, recipe.data)}") from error
    named = splits.named
    if recipe.first_classes:
        named = {name: first_classes(images, recipe.first_classes) for name, images in named.items()}
    splits = replace(splits, train=named["train"], val=named["val"], test=named.get("test"))
    if recipe.fraction == 1:
        return splits
    return splits.with_share(per_class_fraction(splits.train, recipe.fraction, recipe.data_seed))


def eval_transform(recipe: ClassificationRecipe) -> EvalTransform:
    """What an image from a file goes through before it is normalised, where nothing is augmented."""
    interpolation = recipe.preprocessing.interpolation
    return EvalTransform(recipe.image_size, crop_ratio=recipe.eval_crop, interpolation=interpolation)


class ImageData(TaskData[LabelledImages]):
    """The labelled images of a recipe, and batches of them."""

    recipe: ClassificationRecipe

    def __init__(self, recipe: ClassificationRecipe, splits: LabelledSplits) -> None:
        # Crops are taken from somewhat larger images than the model sees, as they are from files.
        enlarged = math.floor(recipe.image_size / recipe.eval_crop)
        self.stored_size = recipe.image_size if recipe.crop != "resized" else enlarged
        everything = sum(map(len, splits.named.values()))
        super().__init__(recipe, splits, resident_bytes=everything * 3 * self.stored_size**2)
        self._on_device: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = {}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.splits.train.classes

    def order(self, epoch: int) -> EpochOrder:
        if self.recipe.sampling != "balanced":
            return super().order(epoch)
        size, repeats = self.splits.epoch_size, self.recipe.repeats
        return balanced_order(self.splits.train.labels, self.recipe.seed, epoch, size=size, repeats=repeats)

    def class_weights(self) -> Tensor | None:
        """Of each class in the loss; their mean over the training images is 1."""
        power = {"none": 0.0, "inverse-sqrt": 0.5, "balanced": 1.0}[self.recipe.class_weights]
        if not power:
            return None
        labels = torch.from_numpy(self.splits.train.labels)
        counts = labels.bincount(minlength=len(self.classes)).double()
        weights = torch.where(counts > 0, counts.clamp(min=1) ** -power, 0)  # a class without images has none to weigh
        return (weights / weights[labels].mean()).float()

    def augmentation(self) -> BatchAugment:
        """What is done to a training batch, by the device or by workers."""
        return BatchAugment(self._augment(), cropped=not self.resident)

    def workers_augment(self, device: torch.device) -> bool:
        """Where the device is a CPU, workers' processors are as fast as those that train, and there are more of them.

        A GPU does it while they decode.
        """
        return not self.resident and device.type == "cpu"

    def evaluation(self) -> BatchEval:
        """What the device does to a batch that is evaluated."""
        crop = self.recipe.eval_crop if self.resident else 1.0
        return BatchEval(self.recipe.image_size, crop_ratio=crop, **self.recipe.preprocessing._asdict())

    def on_device(self, split: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """(uint8 images, labels) of a split, loaded once."""
        key = (split, device)
        if key not in self._on_device:
            images = self.split(split)
            pixels = load_all(
                images,
                self.stored_size,
                bad=self.bad(split),
                interpolation=self.recipe.preprocessing.interpolation,
            )
            self._on_device[key] = (pixels.to(device), torch.from_numpy(images.labels).to(device))
        return self._on_device[key]

    def epoch(self, order: EpochOrder, parts: list[slice], context: ProcessContext) -> Iterator[Inputs]:
        """Indices and keys when resident, the pixels are gathered on the device; images when streamed.

        Keys come along where there is something left to do that follows from them.
        """
        if self.resident:
            for indices, keys in device_batches(order, parts, context.device):
                yield {"indices": indices, "keys": keys}
        else:
            done = self.workers_augment(context.device)
            make = LabelledBatches(self.splits.train, TrainCrop(self._augment()), self.augmentation() if done else None)
            names = ("images", "labels") if done else ("images", "labels", "keys")
            for batch in self.stream(make, "train", order, parts, context):
                yield {name: batch[name] for name in names}

    def eval_batches(self, split: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """In order. An image that cannot be read is replaced by another of its class."""
        images, device = self.split(split), context.device
        order, parts = self.eval_parts(split, _EVAL_BATCH, context)
        normalise = self.evaluation().to(device)
        if self.resident:
            pixels, _ = self.on_device(split, device)
            for indices, _ in device_batches(order, parts, device):
                yield EvalBatch(normalise(pixels[indices]), indices)
        else:
            for batch in self.stream(
                LabelledBatches(images, eval_transform(self.recipe)), split, order, parts, context
            ):
                shown = normalise(batch["images"].to(device, non_blocking=True))
                yield EvalBatch(shown, batch["indices"].to(device))

    def _augment(self) -> Augment:
        recipe = self.recipe
        return Augment(
            size=recipe.image_size,
            crop=recipe.crop,  # type: ignore[arg-type]  # the recipe checked the word
            crop_scale=(recipe.crop_scale, 1.0),
            padding=max(1, recipe.image_size // 8),
            flip=recipe.flip,
            rand_num_ops=recipe.randaugment_ops,
            rand_magnitude=recipe.randaugment_magnitude,
            rand_std=recipe.randaugment_std,
            jitter=recipe.jitter,
            erase=recipe.erasing,
            **recipe.preprocessing._asdict(),
        )
