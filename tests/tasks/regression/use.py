"""Using a finished run: evaluation on data, predictions for pictures, and the model for `inspect` and `explore`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.analysis.pictures import in_order
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.images.decode import read_pictures
from nearsight.images.files import picture_files
from nearsight.images.imageset import Splits
from nearsight.images.transforms import BatchEval, EvalTransform
from nearsight.runs.folder import RunFolder
from nearsight.tasks import Evaluation, Prediction
from nearsight.weights import trained_model
from regression.data import ValuedImages, open_splits, read_rows
from regression.recipe import RegressionRecipe
from regression.task import RegressionTask, build_model


def run_recipe(folder: RunFolder) -> RegressionRecipe:
    """The run's recipe; it has weights of its own and does not need those that it started from."""
    return folder.recipe(RegressionRecipe).with_changes(weights="")


def evaluate(
    run: str | Path, data: str = "", *, split: str = "", device: str = "auto", options: object = None
) -> Evaluation:
    """Measure a run's selected weights on val, or train, of its own data, or on all pictures of `data`."""
    folder = RunFolder(run)
    recipe = run_recipe(folder)
    if data:
        every = ValuedImages(Path(data), read_rows(data))
        splits = Splits(every, every, None, f"{data}: {len(every)} pictures with a number")
    else:
        splits = open_splits(recipe)
    task, split, place = RegressionTask(recipe, splits), split or "val", pick_device(device)
    model = trained_model(task.build_model(), folder, place)
    values = dict(task.evaluate(model, split, ProcessContext(place, precision=pick_precision("auto", place))))
    return Evaluation(splits.origin, split, values, {} if data else splits.fingerprints, tuple(task.problems()))


class RegressionRun:
    """The run for `inspect` and `explore`."""

    classes = ("value",)  # of its outputs, of which there is one
    in_turn = staticmethod(in_order)

    def __init__(self, run: RunFolder) -> None:
        self.recipe = run_recipe(run)
        self.picture_size = (self.recipe.image_size, self.recipe.image_size)

    def fresh_model(self) -> nn.Module:
        return build_model(self.recipe)

    def validation_images(self) -> ValuedImages:
        return open_splits(self.recipe).val

    def predictions(self, outputs: Tensor, size: tuple[int, int]) -> list[dict[str, Any]]:
        return [{"label": f"{outputs[0].item() * self.recipe.value_scale:.4g}"}]


class Regressor:
    """The selected weights of a run, ready to predict."""

    notes = ()

    def __init__(self, run: str | Path, device: str = "auto") -> None:
        folder = RunFolder(run)
        recipe = run_recipe(folder)
        self.scale, self.device = recipe.value_scale, pick_device(device)
        self.model = trained_model(build_model(recipe), folder, self.device)
        self.fit = EvalTransform(recipe.image_size, crop_ratio=1.0)
        self.normalise = BatchEval(recipe.image_size).to(self.device)

    def predict(self, pictures: Sequence[str | Path], options: object) -> Iterator[Prediction]:
        for file, image, problem in read_pictures(picture_files(pictures)):
            value = None if image is None else self._value(image)
            words = f"unreadable: {problem}" if value is None else f"{value:.4g}"
            yield Prediction(str(file), words, {"name": str(file), "value": value, "problem": problem or None}, problem)

    @torch.no_grad()
    def _value(self, image: np.ndarray) -> float:
        return self.model(self.normalise(self.fit(image)[None].to(self.device))).item() * self.scale
