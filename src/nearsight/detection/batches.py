"""Training pictures with boxes in batches, made by workers or on the device: same samples, order and views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nearsight.detection.anchors import NO_BOX
from nearsight.detection.dataset import DetectionSet
from nearsight.detection.views import ViewSettings, annotations_in_view, draw_view, plain_view, render
from nearsight.images.imageset import BadImageLog, read_or_replace
from nearsight.images.transforms import FILL, normalise
from nearsight.randomness import hash32

_MOST_STAND_INS = 15


def pad_images(images: Sequence[np.ndarray]) -> Tensor:
    """Images uint8 [h, w, 3] of any sizes as one batch uint8 [B, 3, H, W], padded right and below."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    batch = np.empty((len(images), height, width, 3), dtype=np.uint8)
    batch[:] = FILL
    for place, image in zip(batch, images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous()


def read_detection_image(images: DetectionSet, index: int, found: dict[str, str]) -> tuple[np.ndarray, int]:
    """(pixels, index of what was read): where an image is bad, any other takes its place, with its own boxes."""

    def others(index: int) -> tuple[str, Sequence[int]]:
        return "images with boxes", [int(hash32(index, attempt)) % len(images) for attempt in range(_MOST_STAND_INS)]

    return read_or_replace(images, index, others, found)


def _stack_boxes(samples: Sequence[tuple[np.ndarray, np.ndarray]], places: int) -> dict[str, Tensor]:
    """Boxes and labels (NO_BOX where none is) of each picture, padded to a fixed number of places."""
    boxes = np.zeros((len(samples), places, 4), np.float32)
    labels = np.full((len(samples), places), NO_BOX, np.int64)
    for place, (own_boxes, own_labels) in enumerate(samples):
        boxes[place, : len(own_boxes)], labels[place, : len(own_labels)] = own_boxes, own_labels
    return {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(labels)}


class PictureBatches:
    """Makes batches for a stream: images uint8 [b, 3, H, W], boxes [b, places, 4] and labels [b, places]."""

    def __init__(self, images: DetectionSet, settings: ViewSettings, places: int) -> None:
        self.images, self.settings, self.places = images, settings, places

    def __call__(self, indices: np.ndarray, keys: np.ndarray, found: dict[str, str]) -> dict[str, Tensor]:
        pictures, samples = [], []
        for index, key in zip(indices, keys, strict=True):
            image, chosen = read_detection_image(self.images, int(index), found)
            size = (image.shape[0], image.shape[1])
            view = draw_view(int(key), size, self.settings)
            pictures.append(render(image, view, self.settings.size, FILL))
            samples.append(annotations_in_view(self.images.annotations(chosen), size, view, self.settings.size))
        stacked = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
        return {"images": stacked, **_stack_boxes(samples, self.places)}


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
        bad: BadImageLog | None = None,
    ) -> None:
        self.images, self.settings, self.places = images, settings, places
        height, width = settings.size
        stored = np.empty((len(images), height, width, 3), dtype=np.uint8)
        self._source = np.arange(len(images))
        sizes = np.empty((len(images), 2), dtype=np.int64)
        found: dict[str, str] = {}
        for index in range(len(images)):
            image, self._source[index] = read_detection_image(images, index, found)
            view = plain_view((image.shape[0], image.shape[1]), settings.size)
            stored[index] = render(image, view, settings.size, FILL)
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
            view = draw_view(int(key), size, self.settings)
            views.append(view)
            samples.append(annotations_in_view(self.images.annotations(chosen), size, view, self.settings.size))
        return {
            "index": torch.from_numpy(np.asarray(indices, dtype=np.int64)),
            "view": torch.tensor(views, dtype=torch.float32),
            **_stack_boxes(samples, self.places),
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
        pictures = F.grid_sample(normalise(self._stored[index]), grid, mode="bilinear", align_corners=False)
        return pictures * inside[:, None]


def _sources(length: int, resized: Tensor, first: Tensor, mirrored: Tensor, stored: Tensor) -> Tensor:
    """[b, length]: for each row (or column) of the picture, where in the stored image it comes from."""
    place = torch.arange(length, device=resized.device, dtype=torch.float32)
    place = torch.where(mirrored[:, None] > 0.5, length - 1 - place, place)
    return (place + 0.5 + first[:, None]) * (stored / resized)[:, None] - 0.5
