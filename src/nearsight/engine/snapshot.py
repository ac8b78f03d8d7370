"""Everything a run needs to go on as if nothing had happened, as tensors and JSON."""

from __future__ import annotations

import torch
from torch import Tensor

from nearsight.engine.optimizer import optimizer_tensors, restore_optimizer
from nearsight.engine.sharding import gather_model, gather_optimizer, is_sharded, scatter_model, scatter_optimizer
from nearsight.engine.state import Workbench
from nearsight.runs.checkpoint import Checkpoint
from nearsight.runs.exits import DiskError


def take_tensors(bench: Workbench) -> dict[str, dict[str, Tensor]]:
    """Weights, optimiser state and averaged weights under names that do not depend on the number of processes.

    With sharded parameters every process must call it: it gathers them.
    """
    model, optimizer, averaged = bench.model, bench.optimizer, bench.averaged
    if is_sharded(model):
        tensors = {"model": gather_model(model), "optim": gather_optimizer(model, optimizer)}
        if averaged is not None:
            tensors["ema"] = gather_model(averaged.model)
        return tensors
    tensors = {"model": dict(model.state_dict()), "optim": optimizer_tensors(model, optimizer)}
    if averaged is not None:
        tensors["ema"] = dict(averaged.model.state_dict())
    return tensors


def put_tensors(checkpoint: Checkpoint, bench: Workbench) -> None:
    """Undo ``take_tensors``. ``DiskError`` when the checkpoint belongs to another model."""
    model, optimizer, averaged = bench.model, bench.optimizer, bench.averaged
    groups = checkpoint.tensors
    try:
        if is_sharded(model):
            scatter_model(model, groups["model"])
            scatter_optimizer(model, optimizer, groups["optim"])
            if averaged is not None:
                scatter_model(averaged.model, groups.get("ema", groups["model"]))
            return
        model.load_state_dict(groups["model"])
        restore_optimizer(model, optimizer, groups["optim"])
        if averaged is not None:  # which may have begun with this resumption
            averaged.model.load_state_dict(groups.get("ema", groups["model"]))
    except (KeyError, ValueError, RuntimeError) as error:
        first_line = str(error).splitlines()[0]
        raise DiskError(f"the checkpoint of step {checkpoint.step} does not fit this model: {first_line}") from error


def expected_bytes(bench: Workbench) -> int:
    """The size of a checkpoint, also before the optimiser has any state."""
    weights = sum(value.numel() * value.element_size() for value in bench.model.state_dict().values())
    moments = 2 if isinstance(bench.optimizer, torch.optim.AdamW) else 1
    return weights * (1 + moments + (bench.averaged is not None))
