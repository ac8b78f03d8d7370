"""The fields of a recipe that only detection reads."""

from __future__ import annotations

from dataclasses import dataclass

from nearsight.recipes.fields import option


@dataclass(frozen=True, kw_only=True)
class DetectionFields:
    """How training pictures are taken from images with boxes."""

    image_height: int = option(
        0, "detection: height of the pictures (0: image_size, which is their width)", change="never"
    )
    smallest_scale: float = option(0.8, "detection: smallest scale of an image, 1 where it just fits the picture")
    largest_scale: float = option(1.2, "detection: largest scale of an image")
    flip_vertical: float = option(0.0, "detection: probability of a vertical flip, for images without an up")
