"""Using a finished run: its model, its measures on some data, its predictions for some pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from nearsight.classification.model import build_classifier
from nearsight.classification.task import ClassificationTask
from nearsight.datasets.sources import open_images
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.images.batch_augment import BatchEval
from nearsight.images.decode import IMAGE_SUFFIXES, read_image_file
from nearsight.images.imageset import BadImage, Splits, first_classes, with_classes
from nearsight.images.transforms import EvalTransform
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder, class_names
from nearsight.runs.layout import DATA
from nearsight.weights.loading import load_weights

_BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """One picture: its classes from the likeliest on, or why it could not be read."""

    name: str
    classes: tuple[tuple[str, float], ...]
    problem: str = ""


@dataclass(frozen=True)
class Measured:
    """Values of a run's selected weights, the images they were measured on, and what there is to say about those."""

    origin: str
    split: str
    values: dict[str, float]
    notes: tuple[str, ...]


def evaluate_run(run: str | Path, data: str = "", *, split: str = "", device: str = "auto") -> Measured:
    """Measure a classification run's selected weights on a split of its own data, or on all images of ``data``.

    ``split`` is train, val or test; by default test where there is one.
    """
    recipe = RunFolder(run).recipe()
    if recipe.task != "classification":
        raise ValueError(f"{run} is a detection run; measure it with: nearsight detect eval {run}")
    recipe = recipe.with_changes(device=device, init_from="", teacher="", distillation="none", drop_path=0.0)
    task, split, origin = _own_task(run, recipe, split) if not data else _other_task(run, recipe, data, split)
    context = _context(recipe)
    model = task.build_model()
    load_weights(model, RunFolder(run).selected_weights(), str(run))
    values = dict(task.evaluate(model.to(context.device), "val" if data else split, context))
    bad = task.data.bad("val" if data else split).reasons
    notes = [f"unreadable, and replaced by another image of its class: {name}: {why}" for name, why in bad.items()]
    if not data and RunFolder(run).read_json(DATA) != task.fingerprint():
        notes.append(f"warning: {recipe.data} has changed since the run was trained on it")
    return Measured(origin, split, values, tuple(notes))


def _own_task(run: str | Path, recipe: Recipe, split: str) -> tuple[ClassificationTask, str, str]:
    """The run's data, split as it was for training."""
    task = ClassificationTask(recipe)
    if list(task.data.classes) != class_names(run):
        odd = sorted(set(task.data.classes) ^ set(class_names(run)))[:5]
        names = ", ".join(odd) or "their order"
        raise ValueError(f"{recipe.data} no longer has the run's classes; they differ in: {names}")
    split = split or ("test" if task.has_split("test") else "val")
    if split not in ("train", "val", "test") or not task.has_split(split):
        there = ["train", "val", *(["test"] if task.has_split("test") else [])]
        raise ValueError(f"there is no split {split!r} here; use {' or '.join(there)}")
    return task, split, task.describe()[0]


def _other_task(run: str | Path, recipe: Recipe, data: str, split: str) -> tuple[ClassificationTask, str, str]:
    """Images that the run has not seen: nothing is held back from them."""
    images, split, origin = open_images(data, split=split, download=recipe.download)
    if 0 < recipe.first_classes < len(images.classes):
        images = first_classes(images, recipe.first_classes)
    try:
        images = with_classes(images, class_names(run))
    except ValueError as error:
        raise ValueError(f"{data} does not have the run's classes: {error}") from error
    # One set for every name: only the one that is measured is read.
    return ClassificationTask(recipe, Splits(images, images, None, origin)), split, origin


def load_classifier(run: str | Path) -> tuple[nn.Module, Recipe, list[str]]:
    """(model with the selected weights, recipe, class names) of a classification run."""
    recipe = RunFolder(run).recipe()
    classes = class_names(run)
    if recipe.task != "classification":
        raise ValueError(f"{run} is a detection run; use it with: nearsight detect predict {run}")
    if not classes:
        raise ValueError(f"{run} is not a run with a list of classes")
    model = build_classifier(recipe.with_changes(init_from="", drop_path=0.0), len(classes))
    load_weights(model, RunFolder(run).selected_weights(), str(run))
    return model.eval(), recipe, classes


@torch.no_grad()
def predict_images(
    run: str | Path, images: Sequence[str | Path], *, top: int = 5, device: str = "auto"
) -> list[Prediction]:
    """What a run says of picture files and folders of them, in the order given. An unreadable one is reported."""
    paths = list(picture_files(images))
    model, recipe, classes = load_classifier(run)
    context = _context(recipe.with_changes(device=device))
    model.to(context.device)
    fit = EvalTransform(recipe.image_size, crop_ratio=recipe.eval_crop)
    normalise = BatchEval(recipe.image_size).to(context.device)
    predictions: list[Prediction] = []
    for start in range(0, len(paths), _BATCH):
        readable, problems = [], {}
        for path in paths[start : start + _BATCH]:
            try:
                readable.append((path, fit(read_image_file(path, str(path)))))
            except BadImage as bad:
                problems[path] = bad.reason
        found: dict[Path, tuple[tuple[str, float], ...]] = {}
        if readable:
            pixels = torch.stack([image for _, image in readable]).to(context.device)
            shares = model(normalise(pixels)).float().softmax(dim=1).cpu()
            best = shares.topk(min(top, len(classes)), dim=1)
            for (path, _), values, places in zip(readable, best.values.tolist(), best.indices.tolist(), strict=True):
                found[path] = tuple((classes[place], value) for place, value in zip(places, values, strict=True))
        for path in paths[start : start + _BATCH]:
            predictions.append(Prediction(str(path), found.get(path, ()), problems.get(path, "")))
    return predictions


def picture_files(sources: Iterable[str | Path]) -> Iterable[Path]:
    """The files themselves, and the pictures in folders, sorted."""
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found = sorted(f for f in path.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES and not f.is_dir())
            if not found:
                raise ValueError(f"there is no picture in {path}: no file ends in {', '.join(sorted(IMAGE_SUFFIXES))}")
            yield from found
        elif path.exists():
            yield path
        else:
            raise ValueError(f"{path}: no such file or folder")


def _context(recipe: Recipe) -> ProcessContext:
    device = pick_device(recipe.device)
    return ProcessContext(device, precision=pick_precision("auto", device))
