"""Putting weights into a model, or saying all that does not fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.runs.folder import RunFolder

CLASSIFIER_HEADS = ("fc.", "head.", "head_dist.")
"""How the names of a classifier's last layers begin."""


def load_weights(
    model: nn.Module, weights: dict[str, Tensor], origin: str, *, may_differ: tuple[str, ...] = ()
) -> None:
    """Put ``weights`` into ``model``; every mismatch is named in one error.

    What begins with ``may_differ`` and has another shape, such as a head for other classes, keeps the model's values.
    """
    own = model.state_dict()
    kept = [name for name in own if name.startswith(may_differ) and name in weights]
    weights = {**weights, **{name: own[name] for name in kept if weights[name].shape != own[name].shape}}
    missing = sorted(set(own) - set(weights))
    unknown = sorted(set(weights) - set(own))
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    unfit = [name for name in own if name in weights and not _fits(weights[name], own[name])]
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
    model.load_state_dict({name: weights[name] for name in own})


def trained_model(model: nn.Module, run: RunFolder, device: torch.device) -> nn.Module:
    """A fresh model of a run with the weights that validation selected, ready to answer."""
    load_weights(model, run.selected_weights(), str(run.path))
    return accelerate(model).eval().to(device)


def _fits(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
