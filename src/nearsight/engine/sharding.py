"""FSDP2 for models that do not fit one device: parameters, gradients and optimiser state are split over processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint.state_dict as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

_WHOLE = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
_SPREAD = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard(model: nn.Module) -> None:
    """Split ``model`` in place: each block of a module list on its own, then the rest."""
    for container in model.modules():
        if isinstance(container, nn.ModuleList):
            for block in container:
                fully_shard(block)
    # The default leaves the outermost parameters whole after a forward pass, where saving would not find them.
    fully_shard(model, reshard_after_forward=True)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(value: Tensor) -> Tensor:
    """A sharded scalar (a gradient norm) as an ordinary tensor, equal on all processes."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_model(model: nn.Module) -> dict[str, Tensor]:
    """Full weights on the CPU of the first process; all processes must call."""
    weights: dict[str, Any] = dcp.get_model_state_dict(model, options=_WHOLE)
    return dict(weights)


def scatter_model(model: nn.Module, weights: dict[str, Tensor]) -> None:
    whole_weights: dict[str, Any] = dict(weights)
    dcp.set_model_state_dict(model, whole_weights, options=_SPREAD)


def gather_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The same ``parameter name/key`` names as an unsharded run gives."""
    everything: dict[str, Any] = dict(dcp.get_optimizer_state_dict(model, optimizer, options=_WHOLE))
    state: dict[str, dict[str, Any]] = everything.get("state", {})
    return {
        f"{name}/{key}": value
        for name, entries in state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def scatter_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[str, Any] = {}
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(name, {})[key] = value
    rates = [group["lr"] for group in optimizer.param_groups]
    groups = dcp.get_optimizer_state_dict(model, optimizer)["param_groups"]
    dcp.set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": groups}, options=_SPREAD)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # loading put copies here; the schedule writes into the originals
