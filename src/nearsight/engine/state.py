"""The state of a run: tensors that are trained and saved, progress as JSON, and the clock."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nearsight.acceleration import accelerate
from nearsight.engine.distributed import World
from nearsight.engine.layers import head_names
from nearsight.engine.optimizer import AveragedModel, build_optimizer, optimizer_tensors, restore_optimizer
from nearsight.engine.sharding import gather_model, scatter_model, shard
from nearsight.engine.task import Task
from nearsight.randomness import INITIALISATION_STREAM, hash32
from nearsight.recipes.recipe import Recipe
from nearsight.runs.layout import AVERAGE, MODEL, OPTIMIZER


@dataclass
class Progress:
    """Where a run stands; the part of its state that is JSON."""

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    pending: list[list[float]] = field(default_factory=list)
    """Loss and gradient norm of the steps that are not in the log yet."""
    best: dict[str, Any] | None = None
    improved: dict[str, Any] | None = None
    """Step and value of the last evaluation that was better than all before."""
    ended: int = 0
    """Of how many steps the plan was that patience ended early; 0 where it did not."""
    seconds: float = 0.0


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def batch_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


class TrainState:
    """The model with fresh weights from the recipe's seed, equal on every process, and what is trained beside it."""

    def __init__(self, task: Task, recipe: Recipe, world: World, device: torch.device) -> None:
        torch.manual_seed(hash32(recipe.seed, INITIALISATION_STREAM))
        self.memory_format = torch.channels_last if recipe.channels_last else torch.preserve_format
        self.model = accelerate(task.build_model().to(device).to(memory_format=self.memory_format))
        if recipe.norm_decay:
            for norm in batch_norms(self.model):
                norm.momentum = 1 - recipe.norm_decay
        if recipe.sync_batch_norm and world.size > 1:
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        average = copy.deepcopy(self.model) if recipe.ema else None
        sharded = recipe.fsdp and world.size > 1
        if sharded:
            shard(self.model)
            if average is not None:
                shard(average)
        self.averaged = AveragedModel(self.model, average) if average is not None else None
        self.lr = torch.zeros((), device=device)  # on the device, so that a captured step reads its current value
        self.optimizer = build_optimizer(self.model, recipe, self.lr)
        self._bare = task.training_module(self.model)
        self._wraps = world.size > 1 and not sharded
        self._device = device
        head = head_names(self.model) if recipe.frozen_epochs else set()
        self._body = [p for name, p in self.model.named_parameters() if p.requires_grad and name not in head]
        self.frozen = False
        self.module = self._wrapped()
        """What is called in training."""

    def _wrapped(self) -> nn.Module:
        if not self._wraps:
            return self._bare
        ids = [self._device.index] if self._device.type == "cuda" else None
        return DistributedDataParallel(self._bare, device_ids=ids, gradient_as_bucket_view=True)

    def freeze(self, frozen: bool) -> None:
        """Whether the head alone learns. A step that was made before must be made anew: `module` is another."""
        self.frozen = frozen
        for parameter in self._body:
            parameter.requires_grad_(not frozen)
            parameter.grad = None
        self.module = self._wrapped()
        self.train()

    def train(self) -> None:
        """Training mode. The batch norms of a frozen body keep their statistics, and normalise by them."""
        self.module.train()
        if self.frozen:
            for module in self.model.modules():
                if isinstance(module, _NORMS):
                    module.eval()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights, optimiser state and averaged weights under names that do not depend on the number of processes.

        With sharded parameters every process must call it: it gathers them.
        """
        tensors = {MODEL: gather_model(self.model), OPTIMIZER: optimizer_tensors(self.model, self.optimizer)}
        if self.averaged is not None:
            tensors[AVERAGE] = gather_model(self.averaged.model)
        return tensors

    def load_tensors(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        """Load what ``tensors`` returned; ``ValueError`` when it belongs to another model."""
        try:
            scatter_model(self.model, tensors[MODEL])
            restore_optimizer(self.model, self.optimizer, tensors[OPTIMIZER])
            if self.averaged is not None:  # averaging may start with a resumed run
                scatter_model(self.averaged.model, tensors.get(AVERAGE, tensors[MODEL]))
        except (KeyError, ValueError, RuntimeError) as error:
            raise ValueError(str(error).splitlines()[0]) from error

    def expected_bytes(self) -> int:
        """The size of a checkpoint, also before the optimiser has any state."""
        weights = sum(value.numel() * value.element_size() for value in self.model.state_dict().values())
        moments = 2 if isinstance(self.optimizer, torch.optim.AdamW) else 1
        return weights * (1 + moments + (self.averaged is not None))


class Clock:
    """Seconds spent in the training loop since the last ``lap``, and in the run as a whole (resumes included)."""

    def __init__(self, seconds_before: float = 0.0) -> None:
        self._began = time.perf_counter() - seconds_before
        self._lap_began = time.perf_counter()
        self._waited = 0.0
        self._elsewhere = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for data."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time inside (evaluation, saving) as training."""
        began = time.perf_counter()
        yield
        self._elsewhere += time.perf_counter() - began

    def lap(self) -> tuple[float, float]:
        """(training seconds since the last lap, share of them spent waiting for data)."""
        now = time.perf_counter()
        seconds = max(now - self._lap_began - self._elsewhere, 1e-9)
        share = min(1.0, self._waited / seconds)
        self._lap_began, self._waited, self._elsewhere = now, 0.0, 0.0
        return seconds, share
