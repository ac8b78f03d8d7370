"""Using a finished run: evaluation on data, predictions for pictures, and the model for `inspect` and `explore`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.analysis.pictures import in_turn
from nearsight.classification import PredictOptions
from nearsight.classification.data import open_splits
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.datasets.labelled import LabelledImages, first_classes, with_classes
from nearsight.datasets.sources import open_images
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.images.decode import picture_files, read_pictures
from nearsight.images.imageset import Splits
from nearsight.images.transforms import IMAGENET_MEAN, IMAGENET_STD, BatchEval, EvalTransform
from nearsight.runs.folder import RunFolder, class_names
from nearsight.runs.layout import CLASSES, DATA
from nearsight.tasks import Evaluation, Prediction
from nearsight.text import printable
from nearsight.weights import trained_model

_BATCH = 64


def evaluate(
    run: str | Path, data: str = "", *, split: str = "", device: str = "auto", options: object = None
) -> Evaluation:
    """Measure a classification run's selected weights on a split of its own data, or on all images of ``data``.

    ``split`` is train, val or test; by default test where there is one.
    """
    folder = RunFolder(run)
    recipe = folder.recipe(ClassificationRecipe)
    recipe = recipe.with_changes(init_from="", teacher="", distillation="none", drop_path=0.0)
    task, split, origin = _own_task(run, recipe, split) if not data else _other_task(run, recipe, data, split)
    place = pick_device(device)
    context = ProcessContext(place, precision=pick_precision("auto", place))
    model = trained_model(task.build_model(), folder, place)
    values = dict(task.evaluate(model, "val" if data else split, context))
    bad = task.data.bad("val" if data else split).reasons
    notes = [f"unreadable, and replaced by another image of its class: {name}: {why}" for name, why in bad.items()]
    trained_on, splits = folder.read_json(DATA) or {}, task.data.splits.named
    if not data and any(trained_on.get(name) != images.fingerprint() for name, images in splits.items()):
        notes.append(f"warning: {recipe.data} has changed since the run was trained on it")
    return Evaluation(origin, split, values, tuple(notes))


def _own_task(run: str | Path, recipe: ClassificationRecipe, split: str) -> tuple[ClassificationTask, str, str]:
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


def _other_task(
    run: str | Path, recipe: ClassificationRecipe, data: str, split: str
) -> tuple[ClassificationTask, str, str]:
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


class Classifier:
    """The selected weights of a run, ready to predict."""

    notes: tuple[str, ...] = ()

    def __init__(self, run: str | Path, device: str = "auto") -> None:
        folder, self.classes = RunFolder(run), class_names(run)
        recipe = folder.recipe(ClassificationRecipe).with_changes(init_from="", drop_path=0.0)
        if not self.classes:
            raise ValueError(f"{run} is not a run with a list of classes")
        self.device = pick_device(device)
        self.model = trained_model(build_classifier(recipe, len(self.classes)), folder, self.device)
        self._fit = EvalTransform(recipe.image_size, crop_ratio=recipe.eval_crop)
        self._normalise = BatchEval(recipe.image_size).to(self.device)

    def predict(self, pictures: Sequence[str | Path], options: PredictOptions) -> Iterator[Prediction]:
        """Predictions for picture files and folders of them, in the order given."""
        read = read_pictures(list(picture_files(pictures)))
        while batch := list(itertools.islice(read, _BATCH)):
            yield from self._predict(batch, options.top)

    @torch.no_grad()
    def _predict(self, batch: list[tuple[Path, np.ndarray | None, str]], top: int) -> Iterator[Prediction]:
        fitted = [self._fit(image) for _, image, _ in batch if image is not None]
        shares: Iterator[tuple[list[int], list[float]]] = iter(())
        if fitted:
            logits = self.model(self._normalise(torch.stack(fitted).to(self.device)))
            best = logits.float().softmax(dim=1).cpu().topk(min(top, len(self.classes)), dim=1)
            shares = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        for path, image, problem in batch:
            labels, values = ((), ()) if image is None else next(shares)
            yield _prediction(path, dict(zip((self.classes[label] for label in labels), values, strict=True)), problem)


def _prediction(path: Path, classes: dict[str, float], problem: str) -> Prediction:
    words = ", ".join(f"{printable(name)} {100 * share:.1f} %" for name, share in classes.items())
    record = {"name": str(path), "classes": classes, "problem": problem or None}
    return Prediction(str(path), words or f"unreadable: {problem}", record, problem)


_SHOWN = 5


class ClassificationRun:
    """The run for `inspect` and `explore`: network with fresh weights, validation images, predictions from outputs."""

    in_turn = staticmethod(in_turn)

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run.recipe(ClassificationRecipe).with_changes(init_from="", download=False)
        self.classes: Sequence[str] = class_names(run.path)
        if not self.classes:
            raise ValueError(
                f"{run.path} has no {CLASSES}: it is not a run of `nearsight train`, or it has not started"
            )
        self.picture_size = (self.recipe.image_size, self.recipe.image_size)

    def fresh_model(self) -> nn.Module:
        model = build_classifier(self.recipe, len(self.classes))
        if self.recipe.model.startswith("timm:"):  # trained by nearsight, with its normalisation
            model.pretrained_cfg = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}  # type: ignore[assignment]
        return model

    def validation_images(self) -> LabelledImages:
        return open_splits(self.recipe).val

    def predictions(self, outputs: Tensor, size: tuple[int, int]) -> list[dict[str, Any]]:
        return top_classes(outputs, self.classes)


def top_classes(logits: Tensor, classes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The likeliest classes of the first image of a batch of logits [B, classes]."""
    shares = logits[0].float().softmax(dim=-1)
    best, labels = shares.topk(min(_SHOWN, len(shares)))
    return [
        {"label": classes[label] if label < len(classes) else f"class {label}", "probability": share}
        for share, label in zip(best.tolist(), labels.tolist(), strict=True)
    ]
