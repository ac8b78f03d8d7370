"""A run of a detector in use: boxes in any image, its evaluation, and what `inspect` and `explore` open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.acceleration import accelerate, restore
from nearsight.analysis.pictures import in_order
from nearsight.detection import KIND, MIN_SCORE, EvalOptions, PredictOptions
from nearsight.detection.anchors import DetectorOutputs
from nearsight.detection.coco_metrics import Found
from nearsight.detection.data import open_splits, pad_images
from nearsight.detection.dataset import DetectionSet
from nearsight.detection.model import build_detector
from nearsight.detection.outputs import postprocess
from nearsight.detection.portable import OUTPUTS, BoxesOf
from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.report import draw_boxes
from nearsight.detection.retinanet import RetinaNet
from nearsight.detection.sources import open_parts
from nearsight.detection.task import DetectionTask, coco_results, compared, found_in
from nearsight.detection.views import View, fit_image
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.images.decode import read_pictures
from nearsight.images.files import picture_files
from nearsight.images.imageset import Splits, pick_split
from nearsight.images.preprocessing import Preprocessing
from nearsight.images.transforms import normalise
from nearsight.models.saving import is_saved, model_in_folder, read_config
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import CATEGORIES
from nearsight.tasks import Evaluation, Portable, Prediction
from nearsight.text import printable
from nearsight.weights import trained_model

_BATCH = 8
_SHOWN = 20  # boxes that the explorer lists


class Detector:
    """The selected weights of a run, ready to predict: it draws what it finds, and writes COCO's results."""

    def __init__(self, run: str | Path, device: str = "auto") -> None:
        if is_saved(run):
            self._open_saved(Path(run), device)
        else:
            folder = RunFolder(run)
            recipe = folder.recipe(DetectionRecipe)
            self.classes, self.category_ids = run_categories(folder)
            self.context = _context(recipe, device)
            fresh = build_detector(recipe.with_changes(weights=""), len(self.classes))
            self.model = trained_model(fresh, folder, self.context.device)
            self.picture_size, self.preprocessing = recipe.picture_size, recipe.preprocessing
        self.device = self.context.device
        self.notes: list[str] = []

    def _open_saved(self, folder: Path, device: str) -> None:
        config, model = read_config(folder), model_in_folder(folder)
        size, names = config["pretrained_cfg"].get("input_size"), config.get("label_names")
        if not isinstance(model, RetinaNet):
            raise ValueError(f"{folder} holds a classifier, not a detector")
        if not isinstance(names, list) or len(names) != model.num_classes:
            raise ValueError(f"the config.json of {folder} does not list the names of its classes as label_names")
        if not isinstance(size, list) or len(size) != 3 or not all(isinstance(one, int) and one > 0 for one in size):
            raise ValueError(f"the config.json of {folder} has no input_size of three numbers in its pretrained_cfg")
        self.classes = tuple(str(name) for name in names)
        self.category_ids = tuple(range(1, len(names) + 1))
        self.preprocessing = Preprocessing.of_config(config["pretrained_cfg"])
        self.context = ProcessContext(pick_device(device))
        self.model, self.picture_size = accelerate(model).to(self.context.device), (size[1], size[2])

    def _prepared(self, images: Sequence[np.ndarray]) -> tuple[Tensor, tuple[View, ...]]:
        """Images as large as they fit, normalised, and where they lie in them."""
        pictures, views = zip(*(fit_image(image, self.picture_size) for image in images), strict=True)
        batch = pad_images(pictures, self.preprocessing.fill).to(self.context.device)
        return normalise(batch, *self.preprocessing.normalisation), views

    def look(self, images: Sequence[np.ndarray], *, min_score: float = MIN_SCORE) -> list[list[dict[str, Any]]]:
        """The objects in each image, surest first: class, score, and box as (left, top, width, height) in pixels."""
        chunks = [images[first : first + _BATCH] for first in range(0, len(images), _BATCH)]
        return [self._objects(found) for chunk in chunks for found in self.find(chunk, score_threshold=min_score)]

    def _objects(self, found: Found) -> list[dict[str, Any]]:
        return [
            {"class": self.classes[int(label)], "score": float(score), "box": [float(side) for side in box]}
            for box, score, label in zip(*found, strict=True)
        ]

    def portable(self) -> Portable:
        model = restore(self.model).cpu()
        assert isinstance(model, RetinaNet)
        shown = {
            "input_size": (3, *self.picture_size),
            "mean": self.preprocessing.mean,
            "std": self.preprocessing.std,
            "interpolation": "bilinear",
            "crop_mode": "fit",  # the whole picture as large as it fits input_size, then zeros on the right and below
            "num_classes": model.num_classes,
        }
        return Portable(
            network=model,
            forward=BoxesOf(model),
            outputs=OUTPUTS,
            per_image=False,
            classes=self.classes,
            preprocessing=shown,
            prepare=lambda images: self._prepared(images)[0],
            image_size=self.picture_size,
            stride=model.stride,
            least=2 * model.anchors.strides[-1],
        )

    @torch.no_grad()
    def find(self, images: Sequence[np.ndarray], *, score_threshold: float = 0.05) -> list[Found]:
        """Boxes in images uint8 [H, W, 3] of any sizes, in pixels of each image."""
        image_sizes = [(image.shape[0], image.shape[1]) for image in images]
        shown, views = self._prepared(images)
        with self.context.autocast():
            outputs = self.model(shown)
        return found_in(outputs, views, image_sizes, score_threshold=score_threshold)

    def predict(self, pictures: Sequence[str | Path], options: PredictOptions) -> Iterator[Prediction]:
        """One by one; after the last, results.json is written beside the drawings."""
        files, out, self.notes = list(picture_files(pictures)), _made_folder(Path(options.out), "--out"), []
        seen: dict[Path, Found] = {}
        for file, image, problem in read_pictures(files):
            if image is None:
                yield _prediction(file, [], None, problem)
                continue
            (found,) = self.find([image], score_threshold=options.min_score)
            seen[file] = found
            drawn = out / f"{len(seen):05d}-{file.stem}.png"
            draw_boxes(image, found, self.classes, min_score=options.min_score).save(drawn)
            yield _prediction(file, self._objects(found), drawn)
        if seen:
            self._write_results(out / "results.json", seen)
            self.notes = [f"written to {out / 'results.json'}"]

    def _write_results(self, path: Path, seen: dict[Path, Found]) -> None:
        """COCO's results format, and beside it (`…_images.json`) which number stands for which file and class."""
        categories = zip(self.category_ids, self.classes, strict=True)
        legend = {
            "images": [{"id": number, "file_name": str(file)} for number, file in enumerate(seen, start=1)],
            "categories": [{"id": number, "name": name} for number, name in categories],
        }
        path.write_text(json.dumps(coco_results(enumerate(seen.values(), start=1), self.category_ids)) + "\n")
        path.with_name(f"{path.stem}_images.json").write_text(json.dumps(legend, indent=1) + "\n")


def _context(recipe: DetectionRecipe, device: str) -> ProcessContext:
    """A run's precision, but for half precision on a CPU, where it would be slow or impossible."""
    place = pick_device(device)
    return ProcessContext(place, precision=pick_precision("auto" if place.type == "cpu" else recipe.precision, place))


def _made_folder(folder: Path, option: str) -> Path:
    """A folder to write into, made before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option}: {folder} cannot be made a folder ({error.strerror}); choose another") from error
    return folder


def run_categories(folder: RunFolder) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of a run's classes, and the numbers that its data has for them."""
    categories = folder.read_json(CATEGORIES)
    try:
        return tuple(str(one["name"]) for one in categories), tuple(int(one["id"]) for one in categories)
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{folder.path / CATEGORIES} does not list the run's classes") from None


def evaluate(
    run: str | Path, data: str = "", *, split: str = "", device: str = "auto", options: EvalOptions | None = None
) -> Evaluation:
    """Measure a detection run's selected weights: COCO's mAP, by overlap, area and class.

    ``split`` is train, val or test; by default val, and of other ``data`` val, test, or all of it where it has neither.
    """
    results = None
    if options is not None and options.results:
        results = Path(options.results)
        _made_folder(results.parent, "--results")
    folder = RunFolder(run)
    recipe = folder.recipe(DetectionRecipe).with_changes(weights="", resident="off")  # each picture is seen once
    classes, _ = run_categories(folder)
    if data:
        parts = open_parts(data)
        origin, sets, told = parts.kind, parts.sets, parts.notes
    else:
        own = open_splits(recipe)
        origin, sets, told = recipe.data, own.named, own.notes
    chosen = pick_split(sets, split, (KIND.eval_split, "test", "train"))
    images = sets[chosen]
    fingerprints = {} if data else {chosen: images.fingerprint()}
    if images.classes != classes:
        ours, theirs = (printable(", ".join(names)) for names in (classes, images.classes))
        raise ValueError(
            f"{origin} has the classes {theirs}, and the run finds {ours}; they must be the same, in order"
        )
    if not images.num_learnable:
        raise ValueError(f"{origin}: its {chosen} split has no boxes to measure by")
    task, context = DetectionTask(recipe, Splits(images, images, None, origin)), _context(recipe, device)
    model = trained_model(task.build_model(), folder, context.device)
    found = dict(task.detections(model, "val", context))
    evaluator = compared(found, images)
    notes = [*told, *(f"not read: {name}: {reason}" for name, reason in task.data.bad("val").reasons.items())]
    if results is not None:
        numbered = [(int(images.image_ids[index]), one) for index, one in found.items()]
        results.write_text(json.dumps(coco_results(numbered, images.category_ids)) + "\n")
        notes.append(f"written to {results}")
    return Evaluation(
        f"{origin}: {chosen}, {len(images)} images with {len(images.labels)} boxes",
        chosen,
        evaluator.summary(),
        fingerprints,
        tuple(notes),
        {
            name: {"mAP": average, "mAP50": average50}
            for name, (average, average50) in zip(images.classes, evaluator.per_class(), strict=True)
        },
    )


def _prediction(file: Path, objects: list[dict[str, Any]], drawn: Path | None, problem: str = "") -> Prediction:
    words = f"unreadable: {problem}" if problem else f"{len(objects)} found, drawn in {drawn}"
    record = {"name": str(file), "objects": objects, "drawn": drawn and str(drawn), "problem": problem or None}
    return Prediction(str(file), words, record, problem)


class DetectionRun:
    """The run for `inspect` and `explore`: network with fresh weights, validation images, predictions from outputs."""

    in_turn = staticmethod(in_order)

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run.recipe(DetectionRecipe).with_changes(weights="")
        self.classes: Sequence[str] = run_categories(run)[0]
        self.picture_size = self.recipe.picture_size

    def fresh_model(self) -> nn.Module:
        return build_detector(self.recipe, len(self.classes))

    def validation_images(self) -> DetectionSet:
        return open_splits(self.recipe).val

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
