"""Putting weights into a model: what fits, what is adapted, what stays new, or one error that names what cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, isfinite, nn

from nearsight.weights.adapting import adapted
from nearsight.weights.names import STYLES
from nearsight.weights.sources import Weights

CLASSIFIER_HEADS = ("fc.", "head.", "head_dist.")
"""How the names of a classifier's last layers begin."""
DETECTOR_HEAD = "heads.classes.predictor."
_LISTED = 5


@dataclass
class Fit:
    """What became of weights in a model."""

    source: str
    style: str
    """Whose names they had; empty for the model's own."""
    matched: int = 0
    adapted: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """Tensors of the model that keep its fresh values."""
    left_out: list[str] = field(default_factory=list)
    """Tensors of the source that the model has no place for."""

    def lines(self) -> list[str]:
        """For a person to read."""
        named = f", under {self.style}" if self.style else ""
        lines = [f"weights of {self.source}{named}: {self.matched} tensors as they are"]
        for word, names in (("adapted", self.adapted), ("new", self.new), ("left out", self.left_out)):
            if names:
                lines.append(f"weights {word}: {_listed(names)}")
        return lines


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Put ``weights`` into ``model`` as they are; every mismatch is named in one error."""
    own = model.state_dict()
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
    listed = "; ".join(f"{kind}: {_listed(names)}" for kind, names in faults.items() if names)
    if listed:
        raise ValueError(
            f"{origin} does not fit the model: {listed}. Build the model with the options that the weights are for"
        )
    model.load_state_dict(common)


def start_from(
    model: nn.Module, weights: Weights, *, classes: Sequence[str] = (), tensors: Mapping[str, Tensor] | None = None
) -> Fit:
    """Start ``model`` from weights of its own network, whatever their names, image size, classes and channels.

    A head for another number of classes stays new, and one for other ``classes`` where both are known by name.
    ``tensors`` are those of the source where they have been read.
    """
    return fit(
        model,
        weights.read() if tensors is None else tensors,
        weights.source,
        same_classes=not classes or weights.classes in ((), tuple(classes)),
        batch_norm_eps=weights.batch_norm_eps,
    )


def fit(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    same_classes: bool = True,
    batch_norm_eps: float | None = None,
) -> Fit:
    """Put ``tensors`` into ``model``, adapted where they have to be; a ValueError names what cannot be."""
    own, heads = model.state_dict(), head_prefixes(model)
    style, named = _best_names(tensors, own)
    if batch_norm_eps is not None:
        named = _with_own_eps(model, named, batch_norm_eps)
    report, ready = Fit(source, style), {}
    # A head counts as a whole: a bias without its matrix means nothing.
    replaced = {
        prefix for prefix in heads
        if not same_classes or any(
            name.startswith(prefix) and (name not in own or own[name].shape != value.shape)
            for name, value in named.items()
        )
    }  # fmt: skip
    for name, value in named.items():
        if name.startswith(tuple(replaced)):
            (report.new if name in own else report.left_out).append(name)
        elif name in own and own[name].shape != value.shape and (found := adapted(name, value, own[name], model)):
            ready[name], words = found
            report.adapted.append(words)
        else:
            ready[name] = value
            report.matched += 1
    for name, value in own.items():
        if name not in named and name.endswith("num_batches_tracked"):
            ready[name] = value  # frozen batch norms have none
        elif name not in named and name.startswith(heads):
            report.new.append(name)
    load_weights(model, {**ready, **{name: own[name] for name in report.new}}, source)
    return report


def head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """How the names begin of what depends on the classes; timm's models say it themselves."""
    config: Any = getattr(model, "pretrained_cfg", None)
    stated = config.get("classifier") if isinstance(config, dict) else None
    theirs = (stated,) if isinstance(stated, str) else tuple(stated or ())
    return (*(f"{name}." for name in theirs), *CLASSIFIER_HEADS, DETECTOR_HEAD)


def _best_names(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """The tensors under the names, of all known styles, that the model has most of."""
    styled = [(style, translate(tensors)) for style, translate in STYLES]
    return max(styled, key=lambda one: len(one[1].keys() & own.keys()))  # the first of equals


def _with_own_eps(model: nn.Module, tensors: dict[str, Tensor], eps: float) -> dict[str, Tensor]:
    """Weights of batch norms of another eps, for those of the model: the difference is folded in."""
    folded = dict(tensors)
    for name, module in model.named_modules():
        variance = tensors.get(f"{name}.running_var")
        if isinstance(module, nn.BatchNorm2d) and variance is not None and not math.isclose(module.eps, eps):
            factor = ((variance + module.eps) / (variance + eps)).sqrt()
            folded[f"{name}.weight"] = tensors[f"{name}.weight"] * factor
    return folded


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")


def _is_sound(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.all(isfinite(value)))
