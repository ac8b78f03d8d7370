"""Images with boxes for training and evaluation, in batches that workers make or that are drawn on the device.

Both have the same samples, order and views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nearsight.detection.dataset import DetectionSet, DetectionSplits
from nearsight.detection.outputs import pad_targets
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.sources import open_detection
from nearsight.detection.views import View, ViewSettings, annotations_in_view, draw_view, fit_image, plain_view, render
from nearsight.engine.data import EvalBatch, TaskData
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.epochs import EpochOrder
from nearsight.images.imageset import BadImage, BadImageLog, read_or_replace, share_of
from nearsight.images.preprocessing import Preprocessing
from nearsight.images.transforms import normalise
from nearsight.randomness import hash32

EVAL_BATCH = 8
_MOST_STAND_INS = 15


def pad_images(images: Sequence[np.ndarray], fill: tuple[int, int, int]) -> Tensor:
    """Images uint8 [h, w, 3] of any sizes as one batch uint8 [B, 3, H, W], filled right and below."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    batch = np.empty((len(images), height, width, 3), dtype=np.uint8)
    batch[:] = fill
    for place, image in zip(batch, images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous()


def read_detection_image(images: DetectionSet, index: int, found: dict[str, str]) -> tuple[np.ndarray, int]:
    """(pixels, index of what was read): where an image is bad, any other takes its place, with its own boxes."""

    def others(index: int) -> tuple[str, Sequence[int]]:
        return "images with boxes", [int(hash32(index, attempt)) % len(images) for attempt in range(_MOST_STAND_INS)]

    return read_or_replace(images, index, others, found)


def _view_and_boxes(
    images: DetectionSet, index: int, key: int, size: tuple[int, int], settings: ViewSettings
) -> tuple[View, tuple[Tensor, Tensor]]:
    """The view of an image of (height, width) `size` that belongs to a sample's key, and its boxes to learn."""
    view = draw_view(int(key), size, settings)
    boxes, labels = annotations_in_view(images.annotations(index), size, view, settings.size)
    return view, (torch.from_numpy(boxes), torch.from_numpy(labels))


def _padded(samples: Sequence[tuple[Tensor, Tensor]], places: int) -> dict[str, Tensor]:
    boxes, labels = zip(*samples, strict=True)
    return pad_targets(boxes, labels, places)._asdict()


class PictureBatches:
    """Makes batches for a stream: images uint8 [b, 3, H, W], boxes [b, places, 4] and labels [b, places]."""

    def __init__(self, images: DetectionSet, settings: ViewSettings, places: int, fill: tuple[int, int, int]) -> None:
        self.images, self.settings, self.places, self.fill = images, settings, places, fill

    def __call__(self, indices: np.ndarray, keys: np.ndarray, found: dict[str, str]) -> dict[str, Tensor]:
        pictures, samples = [], []
        for index, key in zip(indices, keys, strict=True):
            image, chosen = read_detection_image(self.images, int(index), found)
            size = (image.shape[0], image.shape[1])
            view, sample = _view_and_boxes(self.images, chosen, key, size, self.settings)
            pictures.append(render(image, view, self.settings.size, self.fill))
            samples.append(sample)
        stacked = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
        return {"images": stacked, **_padded(samples, self.places)}


class ResidentPictures:
    """A set whose images live on the device, each stored as large as it fits the picture; views are drawn there.

    Called, it makes a batch for a stream, without pixels; `pictures` draws those.
    """

    def __init__(
        self,
        images: DetectionSet,
        settings: ViewSettings,
        places: int,
        device: torch.device | str,
        *,
        preprocessing: Preprocessing = Preprocessing(),  # noqa: B008 - it cannot be changed
        bad: BadImageLog | None = None,
    ) -> None:
        self.images, self.settings, self.places = images, settings, places
        self._normalisation = preprocessing.normalisation
        height, width = settings.size
        stored = np.empty((len(images), height, width, 3), dtype=np.uint8)
        self._source = np.arange(len(images))
        sizes = np.empty((len(images), 2), dtype=np.int64)
        found: dict[str, str] = {}
        for index in range(len(images)):
            image, self._source[index] = read_detection_image(images, index, found)
            view = plain_view((image.shape[0], image.shape[1]), settings.size)
            stored[index] = render(image, view, settings.size, preprocessing.fill)
            sizes[index] = view.height, view.width
        if found and bad is not None:
            bad.add(found)
        self._stored = torch.from_numpy(stored).permute(0, 3, 1, 2).contiguous().to(device)
        self._sizes = torch.from_numpy(sizes).to(device)

    def __call__(self, indices: np.ndarray, keys: np.ndarray, found: dict[str, str]) -> dict[str, Tensor]:
        """Of one batch, on the host: which images, their views, boxes and labels."""
        views, samples = [], []
        for index, key in zip(indices, keys, strict=True):
            chosen = int(self._source[index])
            size = (int(self.images.sizes[chosen, 0]), int(self.images.sizes[chosen, 1]))
            view, sample = _view_and_boxes(self.images, chosen, key, size, self.settings)
            views.append(view)
            samples.append(sample)
        return {
            "index": torch.from_numpy(np.asarray(indices, dtype=np.int64)),
            "view": torch.tensor(views, dtype=torch.float32),
            **_padded(samples, self.places),
        }

    def pictures(self, index: Tensor, view: Tensor) -> Tensor:
        """Normalised pictures float [b, 3, H, W] of images `index` [b] in views [b, 6]; zeros outside the images."""
        height, width = self.settings.size
        rows = _sources(height, view[:, 0], view[:, 2], view[:, 5], self._sizes[index, 0])
        cols = _sources(width, view[:, 1], view[:, 3], view[:, 4], self._sizes[index, 1])
        inside = ((rows > -0.5) & (rows < self._sizes[index, 0:1] - 0.5))[:, :, None] & (
            (cols > -0.5) & (cols < self._sizes[index, 1:2] - 0.5)
        )[:, None, :]
        # At an image's last half pixel, repeat the edge rather than blend with the padding.
        rows = rows.clamp(min=0).minimum(self._sizes[index, 0:1] - 1.0)
        cols = cols.clamp(min=0).minimum(self._sizes[index, 1:2] - 1.0)
        grid = torch.stack(
            (
                (cols * 2 + 1)[:, None, :].expand(-1, height, -1) / width - 1,
                (rows * 2 + 1)[:, :, None].expand(-1, -1, width) / height - 1,
            ),
            dim=-1,
        )
        pictures = F.grid_sample(
            normalise(self._stored[index], *self._normalisation), grid, mode="bilinear", align_corners=False
        )
        return pictures * inside[:, None]


def _sources(length: int, resized: Tensor, first: Tensor, mirrored: Tensor, stored: Tensor) -> Tensor:
    """[b, length]: for each row (or column) of the picture, where in the stored image it comes from."""
    place = torch.arange(length, device=resized.device, dtype=torch.float32)
    place = torch.where(mirrored[:, None] > 0.5, length - 1 - place, place)
    return (place + 0.5 + first[:, None]) * (stored / resized)[:, None] - 0.5


def open_splits(recipe: DetectionRecipe) -> DetectionSplits:
    """Open the data source; keep the `fraction` of the training images that the recipe names."""
    splits = open_detection(
        recipe.data, seed=recipe.data_seed, val_fraction=recipe.val_fraction, val_from=recipe.val_from
    )
    if recipe.fraction == 1:
        return splits
    return splits.with_share(splits.train.subset(share_of(splits.train.names, recipe.fraction, recipe.data_seed)))


class DetectionData(TaskData[DetectionSet]):
    """The detection sets of a recipe, and batches of them."""

    recipe: DetectionRecipe

    def __init__(self, recipe: DetectionRecipe, splits: DetectionSplits) -> None:
        self.settings = ViewSettings(
            size=recipe.picture_size,
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
            self._pictures = ResidentPictures(
                train, self.settings, self.places, device, preprocessing=self.recipe.preprocessing, bad=bad
            )

    def epoch(self, order: EpochOrder, parts: list[slice], context: ProcessContext) -> Iterator[Inputs]:
        make = self._pictures or PictureBatches(
            self.splits.train, self.settings, self.places, self.recipe.preprocessing.fill
        )
        return iter(self.stream(make, "train", order, parts, context))

    def prepare(self, inputs: Inputs) -> Batch:
        """Normalised pictures, drawn on the device where they live there, and their boxes."""
        if self._pictures is not None:
            images = self._pictures.pictures(inputs["index"], inputs["view"])
        else:
            images = normalise(inputs["images"], *self.recipe.preprocessing.normalisation)
        return Batch(images, (inputs["boxes"], inputs["labels"]))

    def eval_batches(self, split: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """As large as they fit, padded to one size. Images that cannot be read are left out and noted."""
        images = self.split(split)
        mine = range(context.rank, len(images), context.world_size)
        for start in range(0, len(mine), EVAL_BATCH):
            pictures = {index: self._eval_picture(split, index) for index in mine[start : start + EVAL_BATCH]}
            readable = {index: picture for index, picture in pictures.items() if picture is not None}
            if readable:
                batch = pad_images(list(readable.values()), self.recipe.preprocessing.fill).to(context.device)
                shown = normalise(batch, *self.recipe.preprocessing.normalisation)
                yield EvalBatch(shown, torch.tensor(list(readable), device=context.device))

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
