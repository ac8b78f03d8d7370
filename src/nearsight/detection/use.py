"""A trained detector at work: from a run's folder to boxes in any image."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nearsight.detection.batches import FILL, normalise, pad_images
from nearsight.detection.coco_metrics import Found
from nearsight.detection.data import EVAL_BATCH
from nearsight.detection.dataset import DetectionSet
from nearsight.detection.retinanet import RetinaNet
from nearsight.detection.sources import open_detection, open_parts
from nearsight.detection.task import build_detector, coco_results, found_in
from nearsight.detection.views import plain_view, render
from nearsight.engine.device import pick_device, pick_precision
from nearsight.images.decode import read_image_file
from nearsight.images.imageset import BadImage
from nearsight.images.unreadable import BadImageLog
from nearsight.recipes.files import thaw
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import CATEGORIES, CONFIG
from nearsight.weights.loading import load_weights


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
        image_sizes = [(image.shape[0], image.shape[1]) for image in images]
        views = [plain_view(size, self.picture_size) for size in image_sizes]
        pictures = [
            render(image, view, (view.height, view.width), FILL) for image, view in zip(images, views, strict=True)
        ]
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            outputs = self.model(normalise(pad_images(pictures).to(self.device)))
        return found_in(outputs, views, image_sizes, score_threshold=score_threshold)

    def find_in_set(self, images: DetectionSet, bad: BadImageLog) -> dict[int, Found]:
        """What is found in each image of a set, by its place there, batched as in training's own evaluations.

        Images that cannot be read are left out and noted.
        """
        found: dict[int, Found] = {}
        for start in range(0, len(images), EVAL_BATCH):
            batch: dict[int, np.ndarray] = {}
            for index in range(start, min(start + EVAL_BATCH, len(images))):
                try:
                    batch[index] = images.read(index)
                except BadImage as error:
                    bad.add({error.name: error.reason})
            if batch:
                found.update(zip(batch, self.find(list(batch.values())), strict=True))
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
    load_weights(model, folder.selected_weights(), str(folder.path))
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


def sets_to_measure(recipe: Recipe, data: str | None) -> tuple[str, dict[str, DetectionSet]]:
    """What a run's data, or other `data`, is called, and its parts: as in training, or as they are in other data."""
    if data is not None:
        parts = open_parts(data)
        return parts.kind, parts.sets
    splits = open_detection(recipe.data, seed=recipe.data_seed, val_fraction=recipe.val_fraction)
    own = {"train": splits.train, "val": splits.val, "test": splits.test}
    return recipe.data, {name: images for name, images in own.items() if images is not None}


def read_images(files: Sequence[Path], bad: dict[str, str]) -> Iterator[tuple[Path, np.ndarray]]:
    """The images that can be read; the others are noted in `bad`."""
    for file in files:
        try:
            yield file, read_image_file(file, str(file))
        except BadImage as error:
            bad[error.name] = error.reason


def write_results(path: Path, detector: TrainedDetector, files: Sequence[Path], found: Sequence[Found]) -> None:
    """COCO's results format, and beside it (`…_images.json`) which number stands for which file and class."""
    results = coco_results(enumerate(found, start=1), detector.category_ids)
    legend = {
        "images": [{"id": number, "file_name": str(file)} for number, file in enumerate(files, start=1)],
        "categories": [
            {"id": number, "name": name} for number, name in zip(detector.category_ids, detector.classes, strict=True)
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results) + "\n")
    path.with_name(f"{path.stem}_images.json").write_text(json.dumps(legend, indent=1) + "\n")
