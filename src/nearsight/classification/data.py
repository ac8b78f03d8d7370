"""Images for training and evaluation: resident on the device when they are few, streamed by workers when they are many.

Which of the two depends on the data alone, never on the machine, because the two crop slightly differently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearsight.datasets.sources import open_data
from nearsight.engine.batch_size import check_batch
from nearsight.engine.task import Inputs, ProcessContext
from nearsight.images.augmentation import Augment
from nearsight.images.batch_augment import BatchAugment, BatchEval
from nearsight.images.imageset import ImageSet, Splits, first_classes, per_class_fraction
from nearsight.images.loading import BatchStream, ResidentStream, load_all
from nearsight.images.order import EpochOrder, epoch_order
from nearsight.images.transforms import EvalTransform, TrainTransform
from nearsight.images.unreadable import BadImageLog
from nearsight.recipes.recipe import Recipe

_LARGEST_RESIDENT = 2 * 2**30  # bytes of images that are kept on the device without being asked
_EVAL_BATCH = 256


@dataclass(frozen=True)
class EvalBatch:
    """Normalised images on the device, their labels, and their places in the set."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class ImageData:
    """The image sets of a recipe, or ``splits`` instead of them to evaluate on, and batches of them."""

    def __init__(self, recipe: Recipe, splits: Splits | None = None, *, fit_batch: bool = False) -> None:
        self.splits = _chosen(recipe) if splits is None else splits
        count, size = len(self.splits.train), recipe.image_size
        if splits is None:
            recipe = check_batch(recipe, count, fit=fit_batch)
        self.recipe = recipe
        # Crops are taken from somewhat larger images than the model sees, as they are from files.
        self.stored_size = size if recipe.crop != "resized" else math.floor(size / recipe.eval_crop)
        everything = sum(len(images) for images in (self.splits.train, self.splits.val, self.splits.test) if images)
        small = everything * 3 * self.stored_size**2 <= _LARGEST_RESIDENT
        self.resident = recipe.resident == "on" or (recipe.resident == "auto" and small)
        self.steps_per_epoch = count // recipe.batch
        self._bad: dict[str, BadImageLog] = {}
        self._on_device: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = {}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.splits.train.classes

    def split(self, name: str) -> ImageSet:
        images = {"train": self.splits.train, "val": self.splits.val, "test": self.splits.test}[name]
        if images is None:
            raise ValueError(f"the data has no {name} split")
        return images

    def bad(self, name: str) -> BadImageLog:
        """The unreadable images met so far in a split."""
        if name not in self._bad:
            self._bad[name] = BadImageLog(len(self.split(name)), cap=self.recipe.bad_images)
        return self._bad[name]

    def problems(self) -> list[str]:
        """Every unreadable image met so far, and why."""
        return [
            f"{name}: {reason}" if split == "train" else f"{split}: {name}: {reason}"
            for split, log in self._bad.items()
            for name, reason in log.reasons.items()
        ]

    def augmentation(self) -> BatchAugment:
        """What the device does to a training batch."""
        return BatchAugment(self._augment(), done="nothing" if self.resident else "crop")

    def evaluation(self) -> BatchEval:
        """What the device does to a batch that is evaluated."""
        crop = self.recipe.eval_crop if self.resident else 1.0
        return BatchEval(self.recipe.image_size, crop_ratio=crop)

    def order(self, epoch: int) -> EpochOrder:
        return epoch_order(len(self.splits.train), self.recipe.seed, epoch, repeats=self.recipe.repeats)

    def on_device(self, name: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """(uint8 images, labels) of a split, loaded once."""
        key = (name, device)
        if key not in self._on_device:
            images = self.split(name)
            pixels = load_all(images, self.stored_size, bad=self.bad(name))
            self._on_device[key] = (pixels.to(device), torch.from_numpy(images.labels).to(device))
        return self._on_device[key]

    def training_batches(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        """Endless micro-batches from ``start_step`` on: places and keys when resident, images when streamed."""
        first_epoch, first_step = divmod(start_step, self.steps_per_epoch)
        for epoch in itertools.count(first_epoch):
            begin = first_step if epoch == first_epoch else 0
            batches = self._resident_epoch if self.resident else self._streamed_epoch
            for inputs in batches(self.order(epoch), begin, context):
                cut = {name: value.split(context.micro_batch) for name, value in inputs.items()}
                yield [dict(zip(cut, parts, strict=True)) for parts in zip(*cut.values(), strict=True)]

    def _resident_epoch(self, order: EpochOrder, begin: int, context: ProcessContext) -> Iterator[Inputs]:
        """One copy of the epoch's order to the device; a step is a slice of it, the pixels are gathered there."""
        indices = torch.from_numpy(order.indices).to(context.device)
        keys = torch.from_numpy(order.keys).to(context.device)
        for step in range(begin, self.steps_per_epoch):
            part = order.part(step, self.recipe.batch, context.rank, context.world_size)
            yield {"indices": indices[part], "keys": keys[part]}

    def _streamed_epoch(self, order: EpochOrder, begin: int, context: ProcessContext) -> Iterator[Inputs]:
        stream = BatchStream(
            self.splits.train,
            order,
            self.recipe.batch,
            transform=TrainTransform(self._augment(), crop_only=True),
            workers=self.recipe.workers,
            rank=context.rank,
            world=context.world_size,
            start_step=begin,
            bad=self.bad("train"),
            pin_memory=context.device.type == "cuda",
        )
        for batch in stream:
            yield {"images": batch.images, "labels": batch.labels, "keys": batch.keys}

    def eval_batches(self, name: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """This process's share of a split, in order, each image once."""
        images = self.split(name)
        order = epoch_order(len(images), 0, 0, shuffle=False)
        batch, rank, world = _EVAL_BATCH * context.world_size, context.rank, context.world_size
        normalise = self.evaluation().to(context.device)
        stream: BatchStream | ResidentStream
        if self.resident:
            pixels, labels = self.on_device(name, context.device)
            stream = ResidentStream(pixels, labels, order, batch, rank=rank, world=world, drop_last=False)
        else:
            stream = BatchStream(
                images,
                order,
                batch,
                transform=EvalTransform(self.recipe.image_size, crop_ratio=self.recipe.eval_crop),
                workers=self.recipe.workers,
                rank=rank,
                world=world,
                drop_last=False,
                bad=self.bad(name),
            )
        for part in stream:
            shown = normalise(part.images.to(context.device, non_blocking=True))
            yield EvalBatch(shown, part.labels.to(context.device), part.indices)

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
        )


def _chosen(recipe: Recipe) -> Splits:
    """The data source, less what the recipe leaves out."""
    if not recipe.data:
        raise ValueError("no data was given: name an image folder or a dataset, such as: nearsight train clothing")
    splits = open_data(recipe.data, seed=recipe.data_seed, val_fraction=recipe.val_fraction, download=recipe.download)
    train, val, test = splits.train, splits.val, splits.test
    if recipe.first_classes:
        train, val = first_classes(train, recipe.first_classes), first_classes(val, recipe.first_classes)
        test = first_classes(test, recipe.first_classes) if test is not None else None
    if recipe.fraction < 1:
        train = per_class_fraction(train, recipe.fraction, recipe.data_seed)
    return Splits(train, val, test, splits.origin)
