"""Putting weights into a model: every name and shape must fit, or one error names what does not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nearsight.weights.names import from_timm

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
    faults = _listed(
        {
            "missing": missing,
            "unknown": unknown,
            "shapes": shapes,
            "not finite or not numbers of this kind": unfit,
        }
    )
    if faults:
        raise ValueError(f"{origin} does not fit the model: {faults}")
    model.load_state_dict({name: weights[name] for name in own})


def load_timm_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a foreign state dict into one of our models; every name and shape must fit."""
    ours, given = model.state_dict(), from_timm(state)
    missing, unknown = sorted(ours.keys() - given.keys()), sorted(given.keys() - ours.keys())
    misshapen = [
        f"{name} ({list(given[name].shape)}, expected {list(ours[name].shape)})"
        for name in sorted(ours.keys() & given.keys())
        if given[name].shape != ours[name].shape
    ]
    if faults := _listed({"missing": missing, "unknown": unknown, "of another shape": misshapen}):
        raise ValueError(
            f"these weights are not for this model: {faults}. Build it with the weights' own classes and "
            "input size (set_input_size comes after loading), and give the state dict, not a checkpoint around it"
        )
    model.load_state_dict(given)


def _listed(faults: dict[str, list[str]]) -> str:
    """The kinds of faults that there are, and the first names of each."""
    return "; ".join(
        f"{kind}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" for kind, names in faults.items() if names
    )


def _fits(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
