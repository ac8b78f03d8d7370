"""Images with boxes in batches, streamed by workers or resident on the device: same samples, order and views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nearsight.detection.dataset import DetectionSet
from nearsight.detection.views import ViewSettings, annotations_in_view, draw_view, plain_view, render
from nearsight.images.augmentation import IMAGENET_MEAN, IMAGENET_STD
from nearsight.images.imageset import BadImage
from nearsight.images.order import EpochOrder
from nearsight.images.unreadable import BadImageLog, TooManyBadImages
from nearsight.randomness import hash32

NO_BOX = -1
FILL = (124, 116, 104)  # the mean colour, which normalising turns into zero
_TRIES = 16


def normalise(images: Tensor) -> Tensor:
    """uint8 [B, 3, H, W] → float with the mean and spread of ImageNet's channels, as every model here expects."""
    # Numbers, not tensors: nothing is copied to the device, so a captured step can hold it.
    channels = zip(images.unbind(1), IMAGENET_MEAN, IMAGENET_STD, strict=True)
    return torch.stack([(channel.float() - 255 * mean) / (255 * std) for channel, mean, std in channels], dim=1)


def pad_images(images: Sequence[np.ndarray]) -> Tensor:
    """Images uint8 [h, w, 3] of any sizes as one batch uint8 [B, 3, H, W], padded right and below."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    batch = np.empty((len(images), height, width, 3), dtype=np.uint8)
    batch[:] = FILL
    for place, image in zip(batch, images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous()


def read_or_substitute(images: DetectionSet, index: int, found: dict[str, str]) -> tuple[np.ndarray, int]:
    """The image at `index`; where it is bad, note it in `found` and take another, which depends on the index alone."""
    chosen = index
    for attempt in range(_TRIES):
        try:
            return images.read(chosen), chosen
        except BadImage as bad:
            found[bad.name] = bad.reason
            chosen = int(hash32(index, attempt)) % len(images)
    raise TooManyBadImages(f"no readable image among {_TRIES} tried; for example {next(iter(found.items()))}")


def _stack_boxes(samples: Sequence[tuple[np.ndarray, np.ndarray]], places: int) -> dict[str, Tensor]:
    """Boxes and labels of each picture, padded to a fixed number of places."""
    boxes = np.zeros((len(samples), places, 4), np.float32)
    labels = np.full((len(samples), places), NO_BOX, np.int64)
    for place, (own_boxes, own_labels) in enumerate(samples):
        boxes[place, : len(own_boxes)], labels[place, : len(own_labels)] = own_boxes, own_labels
    return {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(labels)}


class _PictureReader(Dataset):
    """Item `step` is this process's batch at that step: tensors by name, bad images met, and what stopped it, if so."""

    def __init__(self, stream: PictureStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return self.stream.steps

    def __getitem__(self, step: int) -> tuple[dict[str, Tensor] | None, dict[str, str], str]:
        s = self.stream
        part = s.order.part(step, s.batch, s.rank, s.world)
        found: dict[str, str] = {}
        pictures, samples = [], []
        try:
            for index, key in zip(s.order.indices[part], s.order.keys[part], strict=True):
                image, chosen = read_or_substitute(s.images, int(index), found)
                size = (image.shape[0], image.shape[1])
                view = draw_view(int(key), size, s.settings)
                pictures.append(render(image, view, s.settings.size, FILL))
                samples.append(annotations_in_view(s.images.annotations(chosen), size, view, s.settings.size))
        except TooManyBadImages as hopeless:  # told, not raised: the loader would wrap it in a worker's traceback
            return None, found, str(hopeless)
        images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
        return {"images": images, **_stack_boxes(samples, s.places)}, found, ""


@dataclass(frozen=True)
class PictureStream:
    """One epoch (or the rest of one) of training pictures for process `rank` of `world`, made by `workers` processes.

    Yields images uint8 [b, 3, H, W], boxes float [b, places, 4] and labels int64 [b, places], NO_BOX where none is.
    """

    images: DetectionSet
    order: EpochOrder
    batch: int
    settings: ViewSettings
    places: int
    workers: int = 0
    rank: int = 0
    world: int = 1
    start_step: int = 0
    bad: BadImageLog | None = None

    @property
    def steps(self) -> int:
        return self.order.steps(self.batch)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        loader = DataLoader(
            _PictureReader(self),
            batch_size=None,
            sampler=range(self.start_step, self.steps),
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(0),  # else the loader draws from the global one
        )
        for inputs, found, hopeless in loader:
            if found and self.bad is not None:
                self.bad.add(found)
            if hopeless:
                raise TooManyBadImages(hopeless)
            yield inputs


class ResidentPictures:
    """A set whose images live on the device, each stored as large as it fits the picture; views are drawn there.

    `inputs` makes, on the host, what the stream makes but for pixels; `pictures` draws those of a batch.
    """

    def __init__(
        self,
        images: DetectionSet,
        settings: ViewSettings,
        places: int,
        device: torch.device | str,
        *,
        bad: BadImageLog | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.images, self.settings, self.places = images, settings, places
        height, width = settings.size
        stored = np.empty((len(images), height, width, 3), dtype=np.uint8)
        self._source = np.arange(len(images))
        sizes = np.empty((len(images), 2), dtype=np.int64)
        found: dict[str, str] = {}
        for index in range(len(images)):
            image, self._source[index] = read_or_substitute(images, index, found)
            view = plain_view((image.shape[0], image.shape[1]), settings.size)
            stored[index] = render(image, view, settings.size, FILL)
            sizes[index] = view.height, view.width
            if progress is not None:
                progress(index + 1, len(images))
        if found and bad is not None:
            bad.add(found)
        self._stored = torch.from_numpy(stored).permute(0, 3, 1, 2).contiguous().to(device)
        self._sizes = torch.from_numpy(sizes).to(device)

    def inputs(self, indices: np.ndarray, keys: np.ndarray) -> dict[str, Tensor]:
        """Of one micro-batch, on the host: which images, their views, boxes and labels."""
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
