"""A picture as people see it and as a model receives it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearsight.analysis.timm_kinds import is_timm_vit
from nearsight.analysis.walk import body_of
from nearsight.datasets.labelled import LabelledImages
from nearsight.datasets.sources import open_data
from nearsight.images.imageset import BadImage, ImageSet
from nearsight.images.preprocessing import preprocessing_of
from nearsight.images.transforms import normalise
from nearsight.models import VisionTransformer

DEFAULT_SIZE = (224, 224)
SAMPLES = "clothing"  # the image set that comes with the package


@dataclass(frozen=True, eq=False)
class Picture:
    """The part of an image that a model looks at, at the model's size."""

    name: str
    pixels: np.ndarray  # uint8 [H, W, 3]

    def tensor(self, model: nn.Module | None = None) -> Tensor:
        """Normalised as a model expects it, as ours all do by default: [1, 3, H, W]."""
        pixels = torch.from_numpy(self.pixels.copy()).permute(2, 0, 1)[None]
        return normalise(pixels, *preprocessing_of(model).normalisation)


def fit_picture(name: str, pixels: np.ndarray, size: tuple[int, int], model: nn.Module | None = None) -> Picture:
    """The largest centred part of an image with the aspect of `size` (height, width), resized as for a model."""
    height, width = pixels.shape[:2]
    scale = min(height / size[0], width / size[1])
    cut_height, cut_width = size[0] * scale, size[1] * scale
    top, left = (height - cut_height) / 2, (width - cut_width) / 2
    box = (left, top, left + cut_width, top + cut_height)
    resized = Image.fromarray(pixels).resize(
        (size[1], size[0]), Image.Resampling[preprocessing_of(model).interpolation.upper()], box=box
    )
    return Picture(name, np.asarray(resized))


def model_size(model: nn.Module) -> tuple[int, int]:
    """The image size a model was made for; ResNets take any, 224 by custom."""
    body = body_of(model)
    if isinstance(body, VisionTransformer):
        return body.img_size
    if is_timm_vit(body):
        height, width = body.patch_embed.img_size
        return height, width
    return DEFAULT_SIZE


def sample_images(count: int) -> list[tuple[str, np.ndarray]]:
    """Pictures that come with the package, one of each class in turn: (class, uint8 [H, W, 3])."""
    images = open_data(SAMPLES).test
    assert images is not None
    return list(islice(in_turn(images), count))


def in_turn(images: LabelledImages) -> Iterator[tuple[str, np.ndarray]]:
    """Pictures of a set, one of each class in turn: (class, uint8 [H, W, 3]). Unreadable ones are passed over."""
    by_class = [np.flatnonzero(np.asarray(images.labels) == label) for label in range(len(images.classes))]
    rounds = range(max(map(len, by_class)))
    order = (int(members[turn]) for turn in rounds for members in by_class if turn < len(members))
    for index, pixels in _readable(images, order):
        yield images.classes[images.labels[index]], pixels


def in_order(images: ImageSet) -> Iterator[tuple[str, np.ndarray]]:
    """Pictures of any set, in its order: (name, uint8 [H, W, 3]). Unreadable ones are passed over."""
    for index, pixels in _readable(images, range(len(images))):
        yield images.names[index], pixels


def _readable(images: ImageSet, order: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
    for index in order:
        try:
            yield index, images.read(index)
        except BadImage:
            continue


def batch_for(
    model: nn.Module, pictures: Sequence[tuple[str, np.ndarray]], size: tuple[int, int] | None = None
) -> Tensor:
    """Pictures (name, uint8 [H, W, 3]) as a model receives them, [B, 3, H, W], at its own size unless told."""
    size = model_size(model) if size is None else size
    return torch.cat([fit_picture(name, pixels, size, model).tensor(model) for name, pixels in pictures])
