"""Parameters sharded over processes (FSDP2). Training alone imports this: torch takes long to load what it needs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint.state_dict as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

_FULL = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
_SCATTERED = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


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


def full_tensor(value: Tensor) -> Tensor:
    """A sharded scalar (a gradient norm) as an ordinary tensor, equal on all processes."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_model(model: nn.Module) -> dict[str, Any]:
    """Full weights. Those of a sharded model are on the CPU of the first process; all processes must call."""
    return dict(dcp.get_model_state_dict(model, options=_FULL) if is_sharded(model) else model.state_dict())


def scatter_model(model: nn.Module, weights: dict[str, Any]) -> None:
    """Load what ``gather_model`` returned."""
    if is_sharded(model):
        dcp.set_model_state_dict(model, weights, options=_SCATTERED)
    else:
        model.load_state_dict(weights)


def gather_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """A sharded model's optimiser state: parameter name → its entries."""
    everything: dict[str, Any] = dict(dcp.get_optimizer_state_dict(model, optimizer, options=_FULL))
    return everything.get("state", {})


def scatter_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[str, Any] = {}
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(name, {})[key] = value
    rates = [group["lr"] for group in optimizer.param_groups]
    groups = dcp.get_optimizer_state_dict(model, optimizer)["param_groups"]
    dcp.set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": groups}, options=_SCATTERED)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # loading put copies here; the schedule writes into the originals
