"""What is being trained: the model, its average, its optimiser, and the module that is called, on their device."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nearsight.engine.distributed import World
from nearsight.engine.optimizer import build_optimizer
from nearsight.engine.sharding import shard
from nearsight.engine.task import Task
from nearsight.engine.weight_average import AveragedModel
from nearsight.randomness import hash32
from nearsight.recipes.recipe import Recipe

_INITIALISATION_SEED = 1


class Workbench:
    """Fresh weights from the recipe's seed, equal on every process."""

    def __init__(self, task: Task, recipe: Recipe, world: World, device: torch.device) -> None:
        torch.manual_seed(hash32(recipe.seed, _INITIALISATION_SEED))
        memory = torch.channels_last if recipe.channels_last else torch.preserve_format
        self.model = task.build_model().to(device).to(memory_format=memory)
        if recipe.sync_batch_norm and world.size > 1:
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        average = copy.deepcopy(self.model) if recipe.ema else None
        sharded = recipe.fsdp and world.size > 1
        if sharded:
            shard(self.model)
            if average is not None:
                shard(average)
        self.averaged = AveragedModel(self.model, average) if average is not None else None
        self.lr = torch.zeros((), device=device)  # on the device, so that a captured step reads it anew
        self.optimizer = build_optimizer(self.model, recipe, self.lr)
        self.module = task.training_module(self.model)
        if world.size > 1 and not sharded:
            ids = [device.index] if device.type == "cuda" else None
            self.module = DistributedDataParallel(self.module, device_ids=ids, gradient_as_bucket_view=True)
