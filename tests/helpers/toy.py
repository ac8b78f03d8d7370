"""A task of a few hundred numbers: large enough to have epochs, dropout, batches and an optimum, small enough to run
200 steps in a moment. The engine's fault tests run on it, which also shows that the engine knows nothing of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.engine.task import Batch
from nearsight.images.epochs import epoch_order
from nearsight.recipes.recipe import R, Recipe
from nearsight.reports.page import Page
from nearsight.tasks import TaskKind

_COUNT, _FEATURES = 96, 6


@dataclass(frozen=True, kw_only=True)
class ToyRecipe(Recipe):
    """What every recipe has."""

    task: ClassVar[str] = "toy"


class ToyTask:
    """Regression on 96 points."""

    batch_multiple = 1
    selection = "score"
    stays_on_device = True

    def __init__(self, recipe: ToyRecipe, *, fit_batch: bool = False) -> None:
        self.recipe = recipe
        generator = torch.Generator().manual_seed(7)
        self.points = torch.randn(_COUNT, _FEATURES, generator=generator)
        self.values = (self.points.sum(1, keepdim=True) + self.points[:, :1] ** 2).tanh()

    @property
    def steps_per_epoch(self) -> int:
        return _COUNT // self.recipe.batch

    def describe(self) -> list[str]:
        return [f"toy task of {_COUNT} points"]

    def fingerprint(self) -> dict[str, object]:
        return {"data": self.recipe.data}

    def remarks(self, model, context) -> list[str]:
        return []

    def num_images(self) -> dict[str, int]:
        return {}

    def not_read(self) -> dict[str, int]:
        return {}

    def files(self) -> dict[str, str]:
        return {"points.txt": f"{_COUNT}\n"}

    def build_model(self) -> nn.Module:
        width = int(self.recipe.model_options.get("width", 8))
        return nn.Sequential(
            nn.Linear(_FEATURES, width), nn.Tanh(), nn.Dropout(self.recipe.drop_path), nn.Linear(width, 1)
        )

    def training_module(self, model: nn.Module) -> nn.Module:
        return model

    def _samples(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(_COUNT, self.recipe.seed, epoch)
        part = order.part(place, self.recipe.batch)
        return torch.from_numpy(order.indices[part]), torch.from_numpy(order.keys[part])

    def feed(self, start_step, context):
        step = start_step
        share = self.recipe.batch // context.world_size
        while True:
            indices, keys = (part.split(share)[context.rank] for part in self._samples(step))
            cuts = zip(indices.split(context.micro_batch), keys.split(context.micro_batch), strict=True)
            yield [{"indices": i, "keys": k} for i, k in cuts]
            step += 1

    def prepare(self, inputs, step: Tensor, first: int) -> Batch:
        noise = (inputs["keys"] % 1000).float().div(10_000).unsqueeze(1)  # augmentation from the sample's key alone
        return Batch(self.points[inputs["indices"]] + noise, self.values[inputs["indices"]])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(outputs, batch.targets)

    def sample_names(self, step: int) -> list[str]:
        return [f"point {index}" for index in self._samples(step)[0].tolist()]

    def problems(self) -> list[str]:
        return []

    @torch.no_grad()
    def evaluate(self, model, split, context):
        model.eval()
        yield "score", -F.mse_loss(model(self.points), self.values).item()

    def observe(self, model, context):
        yield "bias", model[0].bias.tolist()

    def has_split(self, split: str) -> bool:
        return True

    def report_pages(self, model, records, context) -> list[Page]:
        return [Page("Points", text=f"shared by {context.world_size}")]


def toy_recipe(kind: type[R] = ToyRecipe, **changes) -> R:
    """200 steps of the toy, a line each, a checkpoint every 20; of another task, a recipe with the same settings."""
    settings = {
        "data": "toy",
        "model": "toy",
        "batch": 16,
        "epochs": 200 / 6,
        "warmup_epochs": 1.0,
        "lr": 1e-2,
        "lr_batch": 0,
        "ema": 0.9,
        "drop_path": 0.2,
        "log_every": 1,
        "eval_every": 5.0,
        "save_every": 20,
        "device": "cpu",
        "report": False,
        "compile": "off",
    }
    return kind(**{**settings, **changes})


KIND = TaskKind(
    name="toy",
    help="a few hundred numbers",
    data="`toy`",
    recipe=ToyRecipe,
    recipes={"toy": toy_recipe()},
    default_recipe="toy",
    selection=ToyTask.selection,
    models=lambda: ["toy"],
    recognises=lambda source: source == "toy",
    open_task=ToyTask,
    evaluate=NotImplemented,
    load=NotImplemented,
)
"""Registered by the processes that train it, so that they can read its runs."""
