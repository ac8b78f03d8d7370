"""Optimisers from torch, their parameter groups, the learning rate as a pure function of the step, averaged weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nearsight.engine.layers import by_layer, layers_from_head
from nearsight.engine.sharding import gather_optimizer, is_sharded, scatter_optimizer
from nearsight.nn import LocalAttentionConv2d
from nearsight.recipes.recipe import Recipe


def decay_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, object]]:
    """Parameter groups: matrices and kernels decay; vectors and what the model exempts do not.

    A recipe that treats layers differently has these two for each layer, with `multiple`, by which its learning rate
    differs from the last block's, and `head`, which says whether it is the head's.

    The positional vectors ``v_pos`` and the ``gate`` follow the recipe whatever their shape: decay acts on the locality
    strength itself there, and over a full ImageNet run would shrink it by orders of magnitude.
    """
    stated = getattr(model, "no_weight_decay", None)
    exempt: set[str] = set(stated()) if callable(stated) else set()
    for layer, module in model.named_modules():
        if isinstance(module, LocalAttentionConv2d):  # its positions, in a network of any library
            exempt |= {f"{layer}.row_embedding", f"{layer}.col_embedding"}
    layers = layers_from_head(model) if by_layer(recipe) else {}
    groups: dict[tuple[int, bool], list[Tensor]] = {}
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
        groups.setdefault((layers.get(name, 1), not decays), []).append(parameter)
    return [
        {
            "params": members,
            "weight_decay": 0.0 if spared else recipe.weight_decay,
            "multiple": recipe.head_rate if layer == 0 else recipe.layer_decay ** (layer - 1),
            "head": layer == 0,
        }
        for (layer, spared), members in sorted(groups.items(), key=lambda one: one[0])
    ]


def build_optimizer(model: nn.Module, recipe: Recipe, lr: Tensor) -> torch.optim.Optimizer:
    """The recipe's optimiser, fused. A group's rate is a tensor, whose current value a captured step reads: ``lr``
    itself, which groups share, or one of its own where layers differ. ``set_rates`` fills them.

    The fused kernels also take ``found_inf``, a device-side switch that skips the update without asking the host.
    """
    groups = decay_groups(model, recipe)
    if by_layer(recipe):
        groups = [{**group, "lr": torch.zeros_like(lr)} for group in groups]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0, fused=True)
    betas = (recipe.momentum, recipe.beta2)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True, capturable=lr.device.type == "cuda")


def set_rates(optimizer: torch.optim.Optimizer, rate: float, body: float) -> None:
    """Fill the rates of all groups: ``rate`` times the layer's multiple, and times ``body`` for all but the head."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate * group["multiple"] * (1.0 if group["head"] else body))


def body_share(step: int, frozen_steps: int, warmup_steps: float) -> float:
    """The body's share of the learning rate at update ``step``: none while it is frozen, then a line up to all."""
    if not frozen_steps:
        return 1.0
    return min(1.0, max(0, step + 1 - frozen_steps) / max(1.0, warmup_steps))


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
