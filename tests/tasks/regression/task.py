"""Regression of one number from a picture, as a task for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.classification.model import build_classifier
from nearsight.engine.data import DataTask, check_batch
from nearsight.engine.distributed import World
from nearsight.engine.task import Batch, Inputs, ProcessContext
from nearsight.images.augmentation import Augment, BatchAugment
from nearsight.images.imageset import Splits
from nearsight.reports.page import Page
from regression.data import ValueData, ValuedImages, open_splits
from regression.recipe import RegressionRecipe

_LISTED = 10


def build_model(recipe: RegressionRecipe) -> nn.Module:
    """A network for pictures with one output."""
    return build_classifier(recipe, 1)


class RegressionTask(DataTask):
    """r2 is the share of the variance that is explained: 0 for always predicting the mean, 1 for no error."""

    recipe: RegressionRecipe
    data: ValueData

    def __init__(
        self, recipe: RegressionRecipe, splits: Splits[ValuedImages] | None = None, *, fit_batch: bool = False
    ) -> None:
        if splits is None:
            splits = open_splits(recipe)
            recipe = check_batch(recipe, splits, fit=fit_batch)
        self.recipe, self.data = recipe, ValueData(recipe, splits)

    def build_model(self) -> nn.Module:
        return build_model(self.recipe)

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        augment = Augment(size=self.recipe.image_size, crop="none", flip=self.recipe.flip)
        self._augment = BatchAugment(augment).to(context.device)
        self._values = self.data.values("train", context.device) / self.recipe.value_scale
        return super().feed(start_step, context)

    def prepare(self, inputs: Inputs, step: Tensor, first: int) -> Batch:
        return Batch(self._augment(inputs["images"], inputs["keys"]), self._values[inputs["indices"]])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(outputs[:, 0].float(), batch.targets)

    @torch.no_grad()
    def predicted(self, model: nn.Module, split: str, context: ProcessContext) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of a split: indices of pictures, and the model's predictions."""
        model.eval()
        for batch in self.data.eval_batches(split, context):
            with context.autocast():
                outputs = model(batch.images)
            yield batch.indices, outputs[:, 0].double() * self.recipe.value_scale

    def evaluate(self, model: nn.Module, split: str, context: ProcessContext) -> Iterable[tuple[str, float]]:
        values = self.data.values(split, context.device).double()
        sums = torch.zeros(2, dtype=torch.float64, device=context.device)  # pictures, squared errors
        for places, outputs in self.predicted(model, split, context):
            sums += torch.stack([sums.new_tensor(len(places)), (outputs - values[places]).square().sum()])
        World(context.rank, context.world_size).sum(sums)
        error = (sums[1] / sums[0]).item()
        yield "r2", 1 - error / values.var(correction=0).item()
        yield "rmse", error**0.5
        yield "loss", error / self.recipe.value_scale**2

    def report_pages(self, model: nn.Module, records: list[dict[str, Any]], context: ProcessContext) -> list[Page]:
        images, rows = self.data.split("val"), []
        for places, outputs in self.predicted(model, "val", context):
            rows += [
                (images.names[i], float(images.values[i]), o) for i, o in zip(places, outputs.tolist(), strict=True)
            ]
        rows.sort(key=lambda row: -abs(row[1] - row[2]))
        table = [(name, f"{value:.4g}", f"{output:.4g}") for name, value, output in rows[:_LISTED]]
        return [Page("Largest errors on val", table=(("picture", "value", "predicted"), *table))]
