"""Where an image lies in a training picture: scaled, shifted, mirrored. A pure function of the sample's key.

The same numbers place the boxes and draw the pixels, in workers (here, by Pillow) or on the device
(`data.ResidentPictures`), so the two cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from nearsight.detection.dataset import Annotations
from nearsight.randomness import hash32, to_unit

_SCALE, _ROW, _COL, _MIRROR, _UPSIDE = range(5)  # what a random number is drawn for
_SMALLEST_PART = 0.25  # a box of which the crop keeps less is not learned: what is left may not tell what it was


@dataclass(frozen=True)
class ViewSettings:
    """How training pictures vary."""

    size: tuple[int, int] = (640, 640)
    """Height and width of the picture."""
    smallest_scale: float = 0.8
    """Of the image, relative to the scale at which it just fits the picture."""
    largest_scale: float = 1.2
    mirror: float = 0.5
    """Probability of a horizontal flip."""
    upside_down: float = 0.0
    """Probability of a vertical flip, for images without a fixed orientation."""


class View(NamedTuple):
    """The image, resized to `height`×`width`, with its pixel (top, left) at the picture's corner; negative where the
    picture begins outside the image. Then mirrored."""

    height: int
    width: int
    top: int
    left: int
    mirrored: bool
    upside: bool


def draw_view(key: int, image_size: tuple[int, int], settings: ViewSettings) -> View:
    """The view that belongs to a sample's key."""

    def unit(purpose: int) -> float:
        return float(to_unit(hash32(int(key), purpose)))

    fit = min(settings.size[0] / image_size[0], settings.size[1] / image_size[1])
    factor = settings.smallest_scale + (settings.largest_scale - settings.smallest_scale) * unit(_SCALE)
    height, width = (max(round(side * fit * factor), 1) for side in image_size)
    # The slack is what the picture cannot show (positive) or cannot fill (negative); it is cut or padded at random.
    top, left = (
        round((side - target) * unit(purpose))
        for side, target, purpose in ((height, settings.size[0], _ROW), (width, settings.size[1], _COL))
    )
    return View(height, width, top, left, unit(_MIRROR) < settings.mirror, unit(_UPSIDE) < settings.upside_down)


def plain_view(image_size: tuple[int, int], picture_size: tuple[int, int]) -> View:
    """Evaluation's: the whole image as large as it fits, in the upper left corner."""
    fit = min(picture_size[0] / image_size[0], picture_size[1] / image_size[1])
    height, width = (
        min(max(round(side * fit), 1), limit) for side, limit in zip(image_size, picture_size, strict=True)
    )
    return View(height, width, 0, 0, False, False)


def boxes_in_view(
    boxes: np.ndarray, image_size: tuple[int, int], view: View, picture_size: tuple[int, int]
) -> np.ndarray:
    """Boxes [m, 4] of the image in pixels of the picture, not yet cut at its edges."""
    rows, cols = view.height / image_size[0], view.width / image_size[1]
    placed = boxes * (cols, rows, cols, rows) - (view.left, view.top, view.left, view.top)
    if view.mirrored:
        placed[:, [0, 2]] = picture_size[1] - placed[:, [2, 0]]
    if view.upside:
        placed[:, [1, 3]] = picture_size[0] - placed[:, [3, 1]]
    return placed


def boxes_in_image(boxes: np.ndarray, image_size: tuple[int, int], view: View) -> np.ndarray:
    """Boxes found in a plain view of an image, in pixels of the image."""
    rows, cols = image_size[0] / view.height, image_size[1] / view.width
    return boxes * (cols, rows, cols, rows)


def annotations_in_view(
    annotations: Annotations, image_size: tuple[int, int], view: View, picture_size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """What can be learned from the picture: boxes float32 [m, 4] cut at its edges and labels [m].

    Crowds are left out, and boxes that are mostly cut away.
    """
    learnable = annotations.learnable()
    whole = boxes_in_view(learnable.boxes, image_size, view, picture_size)
    height, width = picture_size
    cut = np.clip(whole, 0, (width, height, width, height))
    kept = _area(cut) > _SMALLEST_PART * _area(whole)
    return cut[kept].astype(np.float32), learnable.labels[kept]


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def render(image: np.ndarray, view: View, picture_size: tuple[int, int], fill: tuple[int, int, int]) -> np.ndarray:
    """The picture, uint8 [height, width, 3]: resized with antialiasing; `fill` where the image does not reach."""
    height, width = picture_size
    picture = np.empty((height, width, 3), dtype=np.uint8)
    picture[:] = fill
    # The part of the picture that shows the image, in rows and columns of the picture.
    first_row, first_col = max(-view.top, 0), max(-view.left, 0)
    last_row, last_col = min(view.height - view.top, height), min(view.width - view.left, width)
    if last_row > first_row and last_col > first_col:
        rows, cols = image.shape[0] / view.height, image.shape[1] / view.width
        source = (
            (first_col + view.left) * cols,
            (first_row + view.top) * rows,
            (last_col + view.left) * cols,
            (last_row + view.top) * rows,
        )
        part = Image.fromarray(image).resize(
            (last_col - first_col, last_row - first_row), Image.Resampling.BILINEAR, box=source
        )
        picture[first_row:last_row, first_col:last_col] = np.asarray(part)
    if view.mirrored:
        picture = picture[:, ::-1]
    if view.upside:
        picture = picture[::-1]
    return picture


def fit_image(image: np.ndarray, picture_size: tuple[int, int]) -> tuple[np.ndarray, View]:
    """The whole image as large as it fits a picture, without padding, and its view."""
    view = plain_view((image.shape[0], image.shape[1]), picture_size)
    return render(image, view, (view.height, view.width), (0, 0, 0)), view
