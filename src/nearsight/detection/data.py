"""Images with boxes for training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from nearsight.detection.batches import PictureBatches, ResidentPictures, pad_images
from nearsight.detection.dataset import DetectionSet, DetectionSplits
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.sources import open_detection
from nearsight.detection.views import View, ViewSettings, fit_image, plain_view
from nearsight.engine.data import EvalBatch, TaskData
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.epochs import EpochOrder
from nearsight.images.imageset import BadImage, Splits, name_ranks
from nearsight.images.transforms import normalise

EVAL_BATCH = 8


def open_splits(recipe: DetectionRecipe) -> DetectionSplits:
    """The data source, less what the recipe leaves out."""
    if not recipe.data:
        raise ValueError("no data was given: name a folder of images with boxes, or 'bccd', which comes along")
    splits = open_detection(recipe.data, seed=recipe.data_seed, val_fraction=recipe.val_fraction)
    if recipe.fraction == 1:
        return splits
    ranks = name_ranks(splits.train.names, recipe.data_seed)
    keep = max(round(recipe.fraction * len(splits.train)), 1)
    train = splits.train.subset(np.sort(np.argsort(ranks, kind="stable")[:keep]))
    return Splits(train, splits.val, splits.test, splits.origin, splits.notes)


class DetectionData(TaskData[DetectionSet]):
    """The detection sets of a recipe, and batches of them."""

    recipe: DetectionRecipe

    def __init__(self, recipe: DetectionRecipe, splits: DetectionSplits) -> None:
        self.settings = ViewSettings(
            size=(recipe.image_height or recipe.image_size, recipe.image_size),
            smallest_scale=recipe.smallest_scale,
            largest_scale=recipe.largest_scale,
            mirror=recipe.flip,
            upside_down=recipe.flip_vertical,
        )
        height, width = self.settings.size
        super().__init__(recipe, splits, resident_bytes=len(splits.train) * 3 * height * width)
        self.places = max(splits.train.most_boxes(), 1)
        self._pictures: ResidentPictures | None = None
        self._evaluated: dict[str, list[np.ndarray | None]] = {}

    def load(self, device: torch.device) -> None:
        """Bring resident pictures to the device, once."""
        if self.resident and self._pictures is None:
            train, bad = self.splits.train, self.bad("train")
            self._pictures = ResidentPictures(train, self.settings, self.places, device, bad=bad)

    def epoch(self, order: EpochOrder, parts: list[slice], context: ProcessContext) -> Iterator[Inputs]:
        make = self._pictures or PictureBatches(self.splits.train, self.settings, self.places)
        return iter(self.stream(make, "train", order, parts, context))

    def prepare(self, inputs: Inputs) -> Batch:
        """Normalised pictures, drawn on the device where they live there, and their boxes."""
        if self._pictures is not None:
            images = self._pictures.pictures(inputs["index"], inputs["view"])
        else:
            images = normalise(inputs["images"])
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return Batch(images, (inputs["boxes"], inputs["labels"]))

    def eval_batches(self, split: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """As large as they fit, padded to one size. Images that cannot be read are left out and noted."""
        images = self.split(split)
        mine = range(context.rank, len(images), context.world_size)
        for start in range(0, len(mine), EVAL_BATCH):
            pictures = {index: self._eval_picture(split, index) for index in mine[start : start + EVAL_BATCH]}
            readable = {index: picture for index, picture in pictures.items() if picture is not None}
            if readable:
                batch = pad_images(list(readable.values())).to(context.device)
                yield EvalBatch(normalise(batch), torch.tensor(list(readable), device=context.device))

    def eval_view(self, split: str, index: int) -> View:
        height, width = (int(side) for side in self.split(split).sizes[index])
        return plain_view((height, width), self.settings.size)

    def _eval_picture(self, split: str, index: int) -> np.ndarray | None:
        """Kept in memory where training pictures are resident."""
        images = self.split(split)
        kept = self._evaluated.setdefault(split, [None] * len(images)) if self.resident else None
        if kept is not None and kept[index] is not None:
            return kept[index]
        try:
            image = images.read(index)
        except BadImage as bad:
            self.bad(split).add({bad.name: bad.reason})
            return None
        picture, _ = fit_image(image, self.settings.size)
        if kept is not None:
            kept[index] = picture
        return picture
