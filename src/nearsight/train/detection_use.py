"""A trained detector at work: from a run's folder to boxes in any image."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nearsight.data.decode import read_image_file
from nearsight.data.detection_batches import FILL, normalise, pad_images
from nearsight.data.detection_views import boxes_in_image, plain_view, render
from nearsight.data.imageset import BadImage
from nearsight.models.detection_outputs import postprocess
from nearsight.models.retinanet import RetinaNet
from nearsight.train.detection import CATEGORIES, build_detector
from nearsight.train.detection_metrics import Found, to_corner_and_size
from nearsight.train.machine import pick_device, pick_precision
from nearsight.train.recipe import Recipe
from nearsight.train.recipe_file import thaw
from nearsight.train.runfolder import CONFIG, RunFolder
from nearsight.train.weights import load_weights, selected_weights


@dataclass(frozen=True)
class TrainedDetector:
    """The weights that validation selected in a run, with the names of what they find."""

    model: RetinaNet
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    picture_size: tuple[int, int]
    device: torch.device
    precision: torch.dtype

    @torch.no_grad()
    def find(self, images: Sequence[np.ndarray], *, score_threshold: float = 0.05) -> list[Found]:
        """Boxes in images uint8 [H, W, 3] of any sizes, in pixels of each image."""
        views = [plain_view((image.shape[0], image.shape[1]), self.picture_size) for image in images]
        pictures = [
            render(image, view, (view.height, view.width), FILL) for image, view in zip(images, views, strict=True)
        ]
        padded, _ = pad_images(pictures)
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            outputs = self.model(normalise(padded.to(self.device)))
        sizes = [(view.height, view.width) for view in views]
        found = []
        for image, view, one in zip(
            images, views, postprocess(outputs, sizes, score_threshold=score_threshold), strict=True
        ):
            boxes = boxes_in_image(one.boxes.double().cpu().numpy(), (image.shape[0], image.shape[1]), view)
            found.append(Found(to_corner_and_size(boxes), one.scores.double().cpu().numpy(), one.labels.cpu().numpy()))
        return found


def load_detector(run: str | Path, device: str = "auto") -> TrainedDetector:
    """The detector of a run's folder."""
    folder = RunFolder(run)
    recipe = detection_recipe(folder)
    categories = folder.read_json(CATEGORIES)
    try:
        names = tuple(str(category["name"]) for category in categories)
        ids = tuple(int(category["id"]) for category in categories)
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{folder.path / CATEGORIES} does not list the run's classes") from None
    place = pick_device(device)
    model = build_detector(recipe.with_changes(init_from=""), len(names))
    load_weights(model, selected_weights(folder), str(folder.path))
    size = (recipe.image_height or recipe.image_size, recipe.image_size)
    return TrainedDetector(model.eval().to(place), names, ids, size, place, pick_precision(recipe.precision, place))


def detection_recipe(folder: RunFolder) -> Recipe:
    """The recipe of a run that must be a detector's."""
    if not folder.has_config:
        raise ValueError(f"{folder.path} is not a run: it has no {CONFIG}")
    recipe = thaw(folder.path / CONFIG)
    if recipe.task != "detection":
        raise ValueError(f"{folder.path} is a run of {recipe.task}, not of detection")
    return recipe


def read_images(files: Sequence[Path], bad: dict[str, str]) -> Iterator[tuple[Path, np.ndarray]]:
    """The images that can be read; the others are noted in `bad`."""
    for file in files:
        try:
            yield file, read_image_file(file, str(file))
        except BadImage as error:
            bad[error.name] = error.reason


def write_results(path: Path, detector: TrainedDetector, files: Sequence[Path], found: Sequence[Found]) -> None:
    """COCO's results format, and beside it (`…_images.json`) which number stands for which file and class."""
    results = [
        {
            "image_id": number,
            "category_id": detector.category_ids[int(label)],
            "bbox": [round(float(value), 3) for value in box],
            "score": round(float(score), 6),
        }
        for number, one in enumerate(found, start=1)
        for box, score, label in zip(*one, strict=True)
    ]
    legend = {
        "images": [{"id": number, "file_name": str(file)} for number, file in enumerate(files, start=1)],
        "categories": [
            {"id": number, "name": name} for number, name in zip(detector.category_ids, detector.classes, strict=True)
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results) + "\n")
    path.with_name(f"{path.stem}_images.json").write_text(json.dumps(legend, indent=1) + "\n")
