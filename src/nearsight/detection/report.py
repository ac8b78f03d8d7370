"""Pictures of what a detector finds, for reports and for `nearsight predict`."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from nearsight.detection import MIN_SCORE
from nearsight.detection.coco_metrics import Found, Truth
from nearsight.engine.task import ProcessContext
from nearsight.reports.page import Page, Picture

if TYPE_CHECKING:
    from nearsight.detection.task import DetectionTask

_SHOWN = 6


def class_colors(count: int) -> list[tuple[int, int, int]]:
    """Colours far apart, one for each class."""
    return [
        tuple(round(255 * part) for part in colorsys.hsv_to_rgb(index / max(count, 1), 0.9, 0.85))  # type: ignore[misc]
        for index in range(count)
    ]


def draw_boxes(
    image: np.ndarray,
    found: Found,
    classes: Sequence[str],
    *,
    truth: Truth | None = None,
    min_score: float = MIN_SCORE,
) -> Image.Image:
    """The image with detections in the colours of their classes, named and scored; true boxes thin and white."""
    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    line = max(round(max(image.shape[:2]) / 400), 1)
    font = ImageFont.load_default(size=max(round(max(image.shape[:2]) / 60), 10))
    colors = class_colors(len(classes))
    if truth is not None:
        for left, top, width, height in truth.boxes:
            draw.rectangle((left, top, left + width, top + height), outline=(255, 255, 255))
    for (left, top, width, height), score, label in zip(*found, strict=True):
        if score < min_score:
            continue
        color = colors[int(label)]
        draw.rectangle((left, top, left + width, top + height), outline=color, width=line)
        text = f"{classes[int(label)]} {score:.2f}"
        box = draw.textbbox((left, top), text, font=font)
        draw.rectangle(box, fill=color)
        draw.text((left, top), text, fill=(255, 255, 255), font=font)
    return picture


def detection_pages(model: nn.Module, task: DetectionTask, context: ProcessContext) -> list[Page]:
    """What the selected model finds in validation images, and how well it does on each class."""
    images = task.data.split("val")
    evaluator = task.evaluator(model, "val", context)
    position = {int(number): index for index, number in enumerate(images.image_ids)}
    pictures = []
    for number, (found, truth) in list(evaluator.images().items())[:_SHOWN]:
        index = position[number]
        buffer = io.BytesIO()
        draw_boxes(images.read(index), found, images.classes, truth=truth).save(buffer, "PNG")
        shown = int((found.scores >= MIN_SCORE).sum())
        caption = f"{shown} found (named, with their score), {len(truth.boxes)} true boxes (white)."
        pictures.append(Picture(images.names[index], buffer.getvalue(), caption))
    rows = [("class", "boxes", "mAP", "mAP50")]
    counts = np.bincount(images.labels[~images.crowd], minlength=len(images.classes))
    for name, count, (average, average50) in zip(images.classes, counts, evaluator.per_class(), strict=True):
        rows.append((name, str(count), f"{average:.3f}", f"{average50:.3f}"))
    text = f"Detections with a score of at least {MIN_SCORE} in their class's colour, true boxes in white."
    return [Page("What it finds (val)", text, tuple(pictures), tuple(rows))]
