"""Optimisers from torch, their parameter groups, the learning rate as a pure function of the step, averaged weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nearsight.engine.sharding import gather_optimizer, is_sharded, scatter_optimizer
from nearsight.recipes.recipe import Recipe


def decay_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, object]]:
    """Two parameter groups: matrices and kernels decay; vectors and what the model exempts do not.

    The positional vectors ``v_pos`` and the ``gate`` follow the recipe whatever their shape: decay acts on the locality
    strength itself there, and over a full ImageNet run would shrink it by orders of magnitude.
    """
    stated = getattr(model, "no_weight_decay", None)
    exempt: set[str] = set(stated()) if callable(stated) else set()
    decayed: list[Tensor] = []
    spared: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        own_name = name.rpartition(".")[2]
        if own_name == "v_pos":
            decays = recipe.decay_positions
        elif own_name == "gate":
            decays = recipe.decay_gates
        else:
            decays = parameter.ndim >= 2 and name not in exempt
        (decayed if decays else spared).append(parameter)
    groups = ((decayed, recipe.weight_decay), (spared, 0.0))
    return [{"params": members, "weight_decay": decay} for members, decay in groups if members]


def build_optimizer(model: nn.Module, recipe: Recipe, lr: Tensor) -> torch.optim.Optimizer:
    """The recipe's optimiser, fused. All groups share the tensor ``lr``: a captured step reads its current value.

    The fused kernels also take ``found_inf``, a device-side switch that skips the update without asking the host.
    """
    groups = decay_groups(model, recipe)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0, fused=True)
    betas = (recipe.momentum, recipe.beta2)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True, capturable=lr.device.type == "cuda")


def learning_rate(step: int, total_steps: int, recipe: Recipe) -> float:
    """The rate of update ``step`` (from 0): a line from warmup_lr to the peak, then a cosine down to min_lr."""
    lowest = min(recipe.min_lr, recipe.peak_lr)
    warmup = recipe.warmup_epochs / recipe.epochs * total_steps
    if step < warmup:
        return recipe.warmup_lr + (recipe.peak_lr - recipe.warmup_lr) * step / warmup
    progress = (step - warmup) / max(1.0, total_steps - warmup)
    return lowest + (recipe.peak_lr - lowest) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as ``parameter name/key`` → tensor; its settings come from the recipe."""
    if is_sharded(model):
        state = gather_optimizer(model, optimizer)
    else:
        state = {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}
    return {
        f"{name}/{key}": value
        for name, entries in state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load what ``optimizer_tensors`` returned; ``ValueError`` when it belongs to another model."""
    if is_sharded(model):
        scatter_optimizer(model, optimizer, tensors)
        return
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters:
            raise ValueError(f"the optimiser state names {name!r}, which the model does not have")
        parameter = parameters[name]
        if value.ndim and value.shape != parameter.shape:
            raise ValueError(f"the optimiser state of {name!r} has shape {tuple(value.shape)}")
        # Moments get the memory format of their parameter (such as channels last): fused kernels index both alike.
        like_parameter = torch.empty_like(parameter, dtype=value.dtype)
        optimizer.state[parameter][key] = like_parameter.copy_(value) if value.ndim else value.to(parameter.device)


def ema_weight(step: int, decay: float) -> float:
    """How far the average moves towards the weights after update ``step``: large at first, so that the random
    initialisation is soon forgotten, then 1 − decay."""
    return max(1 - decay, 9.0 / (10 + step))


class AveragedModel:
    """``average`` trails ``source``, of which it started as a copy. Buffers (batch-norm statistics) are copied."""

    def __init__(self, source: nn.Module, average: nn.Module) -> None:
        self.model = average.eval().requires_grad_(False)
        self._averages: list[Tensor] = list(average.parameters())
        self._sources: list[Tensor] = list(source.parameters())
        self._buffers = list(zip(average.buffers(), source.buffers(), strict=True))

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """average += weight · (source − average), with ``weight`` a 0-d tensor on the device."""
        moves = torch._foreach_sub(self._sources, self._averages)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(self._averages, moves)
        for average, source in self._buffers:
            average.copy_(source)
