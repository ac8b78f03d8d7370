"""Putting weights into a model: every name and shape must fit, or one error names what does not."""

from __future__ import annotations

from torch import Tensor, isfinite, nn

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
    common = {name: weights[name] for name in own if name in weights}
    faults = {
        "missing": sorted(own.keys() - weights.keys()),
        "unknown": sorted(weights.keys() - own.keys()),
        "shapes": [
            f"{name} {tuple(value.shape)} instead of {tuple(own[name].shape)}"
            for name, value in common.items()
            if value.shape != own[name].shape
        ],
        "not finite or not numbers of this kind": [
            name for name, value in common.items() if value.shape == own[name].shape and not _is_sound(value, own[name])
        ],
    }
    listed = "; ".join(
        f"{kind}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" for kind, names in faults.items() if names
    )
    if listed:
        raise ValueError(
            f"{origin} does not fit the model: {listed}. Build the model with the options, classes and image size that "
            "the weights are for"
        )
    model.load_state_dict(common)


def _is_sound(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(isfinite(value).all())
