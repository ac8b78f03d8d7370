"""Using a finished run: evaluation on data, predictions for pictures, and the model for `inspect` and `explore`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.acceleration import restore
from nearsight.analysis.pictures import in_turn
from nearsight.classification import KIND, EvalOptions, PredictOptions
from nearsight.classification.data import open_splits
from nearsight.classification.measures import macro_f1_interval
from nearsight.classification.model import build_classifier
from nearsight.classification.opened import open_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.datasets.labelled import LabelledImages, LabelledSplits, first_classes, with_classes
from nearsight.datasets.sources import OneSet, open_images
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.images.decode import read_pictures
from nearsight.images.files import picture_files
from nearsight.images.imageset import Splits, pick_split
from nearsight.images.transforms import BatchEval, EvalTransform
from nearsight.models.saving import Saved, timm_config
from nearsight.runs.folder import RunFolder, class_names
from nearsight.tasks import Evaluation, Portable, Prediction
from nearsight.text import printable
from nearsight.weights import trained_model

_BATCH = 64
_STRIDE_OF_OTHERS = 32  # of networks of timm, as a rule


def evaluate(
    run: str | Path, data: str = "", *, split: str = "", device: str = "auto", options: EvalOptions | None = None
) -> Evaluation:
    """Measure a classification run's selected weights on a split of its own data, or on all images of ``data``.

    ``split`` is train, val or test; by default test where there is one.
    """
    folder = RunFolder(run)
    recipe = folder.recipe(ClassificationRecipe)
    recipe = recipe.with_changes(weights="", teacher="", distillation="none", drop_path=0.0)
    recipe = recipe.with_changes(download=options is not None and options.download)
    classes = class_names(run)
    if data:
        images, shown, origin, told = _other_images(recipe, data, split, classes)
        # One set for every name: only the one that is measured is read.
        task, measured = ClassificationTask(recipe, Splits(images, images, None, origin)), "val"
    else:
        task = ClassificationTask(recipe, _own_splits(recipe, classes))
        shown = measured = pick_split(task.data.splits.named, split, (KIND.eval_split, "val"))
        origin, told = task.describe()[0], task.data.splits.notes
    place = pick_device(device)
    context = ProcessContext(place, precision=pick_precision("auto", place))
    model = trained_model(task.build_model(), folder, place)
    found = task.measure(model, measured, context)
    intervals = {**found.counts.intervals, "f1": macro_f1_interval(found.labels, found.predicted, len(classes))}
    values: dict[str, float] = {}
    for name, value in found.values:
        values[name] = value
        if name in intervals:
            values[f"{name}_low"], values[f"{name}_high"] = intervals[name]
    bad = task.data.bad(measured).reasons
    notes = [f"unreadable, and replaced by another image of its class: {name}: {why}" for name, why in bad.items()]
    return Evaluation(
        origin,
        shown,
        values,
        {} if data else {measured: task.data.split(measured).fingerprint()},
        (*told, *notes),
        found.counts.per_class(classes),
    )


def _own_splits(recipe: ClassificationRecipe, classes: list[str]) -> LabelledSplits:
    """The run's data, split as it was for training."""
    splits = open_splits(recipe)
    if list(splits.train.classes) != classes:
        odd = ", ".join(sorted(set(splits.train.classes) ^ set(classes))[:5]) or "their order"
        raise ValueError(f"{recipe.data} no longer has the run's classes; they differ in: {odd}")
    return splits


def _other_images(recipe: ClassificationRecipe, data: str, split: str, classes: list[str]) -> OneSet:
    """Images that the run has not seen: nothing is held back from them."""
    found = open_images(data, split=split, label_column=recipe.label_column, download=recipe.download)
    images = found.images
    if 0 < recipe.first_classes < len(images.classes):
        images = first_classes(images, recipe.first_classes)
    try:
        return found._replace(images=with_classes(images, classes))
    except ValueError as error:
        raise ValueError(f"{data} does not have the run's classes: {error}") from error


class Classifier:
    """The selected weights of a run or of a saved folder, ready to predict."""

    notes: tuple[str, ...] = ()

    def __init__(self, run: str | Path, device: str = "auto") -> None:
        opened = self._opened = open_classifier(run, device)
        self.model, self.classes, self.device = opened.model, opened.classes, pick_device(device)
        self._fit = EvalTransform(
            opened.image_size, crop_ratio=opened.crop_ratio, interpolation=opened.preprocessing.interpolation
        )
        self._normalise = BatchEval(opened.image_size, **opened.preprocessing._asdict()).to(self.device)

    def look(self, images: Sequence[np.ndarray], *, top: int = 5) -> list[dict[str, float]]:
        """The likeliest classes of each image, likeliest first, with their probabilities."""
        chunks = [images[first : first + _BATCH] for first in range(0, len(images), _BATCH)]
        return [shares for chunk in chunks for shares in self._shares(chunk, top)]

    def portable(self) -> Portable:
        model = restore(self.model).cpu()
        told = timm_config(model) if isinstance(model, Saved) else {}
        side = self._opened.image_size
        return Portable(
            network=model,
            forward=model,
            outputs=("logits",),
            per_image=True,
            classes=self.classes,
            preprocessing={**told, **self._opened.shown(), "num_classes": len(self.classes)},
            prepare=self._prepared,
            image_size=(side, side),
            stride=int(getattr(model, "stride", 1)),
            least=2 * int(getattr(model, "stride", _STRIDE_OF_OTHERS)),
        )

    def predict(self, pictures: Sequence[str | Path], options: PredictOptions) -> Iterator[Prediction]:
        """Predictions for picture files and folders of them, in the order given."""
        read = read_pictures(list(picture_files(pictures)))
        while batch := list(itertools.islice(read, _BATCH)):
            yield from self._predict(batch, options.top)

    def _prepared(self, images: Sequence[np.ndarray]) -> Tensor:
        fitted = torch.stack([self._fit(image) for image in images])
        return self._normalise(fitted.to(self.device))

    @torch.no_grad()
    def _shares(self, images: Sequence[np.ndarray], top: int) -> list[dict[str, float]]:
        """Probabilities of the likeliest classes of each image of a batch."""
        logits = self.model(self._prepared(images))
        best = logits.float().softmax(dim=1).cpu().topk(min(top, len(self.classes)), dim=1)
        names = [[self.classes[label] for label in labels] for labels in best.indices.tolist()]
        return [dict(zip(own, values, strict=True)) for own, values in zip(names, best.values.tolist(), strict=True)]

    def _predict(self, batch: list[tuple[Path, np.ndarray | None, str]], top: int) -> Iterator[Prediction]:
        readable = [image for _, image, _ in batch if image is not None]
        shares = iter(self._shares(readable, top) if readable else ())
        for path, image, problem in batch:
            yield _prediction(path, {} if image is None else next(shares), problem)


def _prediction(path: Path, classes: dict[str, float], problem: str) -> Prediction:
    words = ", ".join(f"{printable(name)} {100 * share:.1f} %" for name, share in classes.items())
    record = {"name": str(path), "classes": classes, "problem": problem or None}
    return Prediction(str(path), words or f"unreadable: {problem}", record, problem)


_SHOWN = 5


class ClassificationRun:
    """The run for `inspect` and `explore`: network with fresh weights, validation images, predictions from outputs."""

    in_turn = staticmethod(in_turn)

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run.recipe(ClassificationRecipe).with_changes(weights="")
        self.classes: Sequence[str] = class_names(run.path)
        self.picture_size = (self.recipe.image_size, self.recipe.image_size)

    def fresh_model(self) -> nn.Module:
        return build_classifier(self.recipe, len(self.classes))

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
