"""Images with boxes for training and evaluation: resident on the device when few, streamed when many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearsight.detection.batches import FILL, PictureStream, ResidentPictures, normalise, pad_images
from nearsight.detection.sources import DetectionSet, DetectionSplits, open_detection
from nearsight.detection.views import View, ViewSettings, plain_view, render
from nearsight.engine.batch_size import check_batch
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.imageset import BadImage, name_ranks
from nearsight.images.order import EpochOrder, epoch_order
from nearsight.images.unreadable import BadImageLog
from nearsight.recipes.recipe import Recipe

_LARGEST_RESIDENT = 2 * 2**30  # bytes of training pictures that are kept on the device without being asked
EVAL_BATCH = 8


@dataclass(frozen=True)
class EvalBatch:
    """Images as they are evaluated: normalised and padded to one size, with their views and their places in the set."""

    images: Tensor
    views: list[View]
    indices: list[int]


class DetectionData:
    """The detection sets of a recipe, and batches of them."""

    def __init__(self, recipe: Recipe, *, fit_batch: bool = False) -> None:
        if not recipe.data:
            raise ValueError("no data was given: name a folder of images with boxes, or 'bccd', which comes along")
        self.splits = _chosen(recipe)
        train = self.splits.train
        self.recipe = recipe = check_batch(recipe, len(train), fit=fit_batch)
        self.settings = ViewSettings(
            size=(recipe.image_height or recipe.image_size, recipe.image_size),
            smallest_scale=recipe.smallest_scale,
            largest_scale=recipe.largest_scale,
            mirror=recipe.flip,
            upside_down=recipe.flip_vertical,
        )
        self.places = max(train.most_boxes(), 1)
        small = len(train) * 3 * self.settings.size[0] * self.settings.size[1] <= _LARGEST_RESIDENT
        self.resident = recipe.resident == "on" or (recipe.resident == "auto" and small)
        self.bad = BadImageLog(len(train), cap=recipe.bad_images)
        self._pictures: ResidentPictures | None = None
        self._evaluated: dict[str, list[np.ndarray | None]] = {}

    def split(self, name: str) -> DetectionSet:
        images = {"train": self.splits.train, "val": self.splits.val, "test": self.splits.test}[name]
        if images is None:
            raise ValueError(f"the data has no {name} split")
        return images

    def order(self, epoch: int) -> EpochOrder:
        return epoch_order(len(self.splits.train), self.recipe.seed, epoch, repeats=self.recipe.repeats)

    def load(self, device: torch.device) -> None:
        """Bring resident pictures to the device, once."""
        if self.resident and self._pictures is None:
            self._pictures = ResidentPictures(self.splits.train, self.settings, self.places, device, bad=self.bad)

    def training_batches(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        """Endless micro-batches from ``start_step`` on."""
        steps = self.order(0).steps(self.recipe.batch)
        first_epoch, first_step = divmod(start_step, steps)
        for epoch in itertools.count(first_epoch):
            for inputs in self._epoch(self.order(epoch), first_step if epoch == first_epoch else 0, context):
                cut = {name: value.split(context.micro_batch) for name, value in inputs.items()}
                yield [dict(zip(cut, parts, strict=True)) for parts in zip(*cut.values(), strict=True)]

    def _epoch(self, order: EpochOrder, begin: int, context: ProcessContext) -> Iterator[Inputs]:
        recipe = self.recipe
        if self._pictures is not None:
            for step in range(begin, order.steps(recipe.batch)):
                part = order.part(step, recipe.batch, context.rank, context.world_size)
                yield self._pictures.inputs(order.indices[part], order.keys[part])
            return
        yield from PictureStream(
            self.splits.train,
            order,
            recipe.batch,
            self.settings,
            self.places,
            workers=recipe.workers,
            rank=context.rank,
            world=context.world_size,
            start_step=begin,
            bad=self.bad,
        )

    def prepare(self, inputs: Inputs) -> Batch:
        """Normalised pictures, drawn on the device where they live there, and their boxes."""
        if self._pictures is not None:
            images = self._pictures.pictures(inputs["index"], inputs["view"])
        else:
            images = normalise(inputs["images"])
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return Batch(images, (inputs["boxes"], inputs["labels"]))

    def eval_batches(self, name: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """This process's share of a split, each image once; images that cannot be read are left out and noted."""
        images = self.split(name)
        mine = range(context.rank, len(images), context.world_size)
        for start in range(0, len(mine), EVAL_BATCH):
            indices, views, pictures = [], [], []
            for index in mine[start : start + EVAL_BATCH]:
                picture = self._eval_picture(name, images, index)
                if picture is not None:
                    indices.append(index)
                    views.append(self.eval_view(images, index))
                    pictures.append(picture)
            if pictures:
                yield EvalBatch(normalise(pad_images(pictures).to(context.device)), views, indices)

    def eval_view(self, images: DetectionSet, index: int) -> View:
        height, width = (int(side) for side in images.sizes[index])
        return plain_view((height, width), self.settings.size)

    def _eval_picture(self, name: str, images: DetectionSet, index: int) -> np.ndarray | None:
        kept = self._evaluated.setdefault(name, [None] * len(images)) if self.resident else None
        if kept is not None and kept[index] is not None:
            return kept[index]
        try:
            image = images.read(index)
        except BadImage as bad:
            self.bad.add({bad.name: bad.reason})
            return None
        view = self.eval_view(images, index)
        picture = render(image, view, (view.height, view.width), FILL)
        if kept is not None:
            kept[index] = picture
        return picture


def _chosen(recipe: Recipe) -> DetectionSplits:
    """The data source, less what the recipe leaves out."""
    if recipe.first_classes:
        raise ValueError("first_classes is for classification; for detection, leave categories out of the annotations")
    splits = open_detection(recipe.data, seed=recipe.data_seed, val_fraction=recipe.val_fraction)
    if recipe.fraction == 1:
        return splits
    ranks = name_ranks(splits.train.names, recipe.data_seed)
    keep = max(round(recipe.fraction * len(splits.train)), 1)
    train = splits.train.subset(np.sort(np.argsort(ranks, kind="stable")[:keep]))
    return DetectionSplits(train, splits.val, splits.test, splits.origin, splits.notes)
