"""A detection run as `inspect` and `explore` open it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from nearsight.detection.data import open_splits
from nearsight.detection.dataset import DetectionSet
from nearsight.detection.model import build_detector
from nearsight.detection.outputs import DetectorOutputs, postprocess
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.report import MIN_SCORE
from nearsight.detection.use import picture_size, run_categories
from nearsight.images.imageset import BadImage
from nearsight.runs.folder import RunFolder

_SHOWN = 20


class DetectionRun:
    """Its network with fresh weights, its validation images, and what its outputs say."""

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run.recipe(DetectionRecipe).with_changes(init_from="")
        self.classes: Sequence[str] = run_categories(run)[0]
        self.picture_size = picture_size(self.recipe)

    def fresh_model(self) -> nn.Module:
        return build_detector(self.recipe, len(self.classes))

    def validation_images(self) -> DetectionSet:
        return open_splits(self.recipe).val

    @staticmethod
    def in_turn(images: DetectionSet) -> Iterator[tuple[str, np.ndarray]]:
        """Pictures in the set's order: (name, uint8 [H, W, 3]). Unreadable ones are passed over."""
        for index, name in enumerate(images.names):
            try:
                yield name, images.read(index)
            except BadImage:
                continue

    def predictions(self, outputs: DetectorOutputs, size: tuple[int, int]) -> list[dict[str, Any]]:
        return surest_boxes(outputs, size, self.classes)


def surest_boxes(outputs: DetectorOutputs, size: tuple[int, int], classes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What a report would draw in an image of (height, width) `size`; boxes are shares of it: left, top, right,
    bottom."""
    found = postprocess(outputs, [size], score_threshold=MIN_SCORE)[0]
    boxes = found.boxes / found.boxes.new_tensor([size[1], size[0]] * 2)
    return [
        {"label": classes[label] if label < len(classes) else f"class {label}", "probability": score, "box": box}
        for box, score, label in zip(boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    ][:_SHOWN]
