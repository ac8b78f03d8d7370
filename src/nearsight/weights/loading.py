"""Putting weights into a model, or saying all that does not fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.runs.folder import RunFolder


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str, *, new_head: bool = False) -> list[str]:
    """Put ``weights`` into ``model``; every mismatch is named in one error.

    With ``new_head``, a classifier whose shape differs keeps its fresh weights; their names are returned.
    """
    own = model.state_dict()
    fresh = [
        name
        for name, value in own.items()
        if new_head and name.split(".")[0] in ("head", "head_dist", "fc")
        if name in weights and weights[name].shape != value.shape
    ]
    missing = sorted(set(own) - set(weights))
    unknown = sorted(set(weights) - set(own))
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and name not in fresh and weights[name].shape != value.shape
    ]
    unfit = [name for name in own if name in weights and name not in fresh and not _fits(weights[name], own[name])]
    faults = [
        f"{label}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for label, names in (
            ("missing", missing),
            ("unknown", unknown),
            ("shapes", shapes),
            ("not finite or not numbers of this kind", unfit),
        )
        if names
    ]
    if faults:
        raise ValueError(f"{origin} does not fit the model: {'; '.join(faults)}")
    model.load_state_dict({name: own[name] if name in fresh else weights[name] for name in own})
    return fresh


def trained_model(model: nn.Module, run: RunFolder, device: torch.device) -> nn.Module:
    """A fresh model of a run with the weights that validation selected, ready to answer."""
    load_weights(model, run.selected_weights(), str(run.path))
    return accelerate(model).eval().to(device)


def _fits(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
