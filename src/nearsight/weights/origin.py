"""Weights of runs: those that validation selected, and which network a run has."""

from __future__ import annotations

import re

import torch
from torch import nn

from nearsight.acceleration import accelerate
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder
from nearsight.weights.fitting import load_weights


def trained_model(model: nn.Module, run: RunFolder, device: torch.device) -> nn.Module:
    """A fresh model of a run with the weights that validation selected, in evaluation mode on the device."""
    load_weights(model, run.selected_weights(), str(run.path))
    return accelerate(model).eval().to(device)


def origin_recipe(source: str) -> Recipe | None:
    """The recipe of the run that `source` is the folder of; None where it is another source, or empty."""
    return RunFolder(source).recipe() if source and RunFolder(source).has_config else None


def require_network(source: str, network: str, wanted: str, advice: str) -> None:
    """Refuse weights of a run of another network than `network`; the same network for images of another size fits.

    `wanted` and `advice` finish the sentence, in which {} is the network that the run has.
    """
    origin = origin_recipe(source)
    if origin is not None and _without_size(origin.model) != _without_size(network):
        has = origin.model
        raise ValueError(f"{source} is a run of {has}, whose weights do not fit {wanted}; {advice.format(has)}")


def _without_size(name: str) -> str:
    return re.sub(r"_(32|64|96)$", "", name)
