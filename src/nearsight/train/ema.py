"""A running average of the weights, kept on the device and updated without reading anything back."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def ema_weight(step: int, decay: float) -> float:
    """How far the average moves towards the weights after update ``step``: large at first, so that the random
    initialisation is soon forgotten, then 1 − decay."""
    return max(1 - decay, 9.0 / (10 + step))


class AveragedModel:
    """A copy of ``model`` whose parameters trail it. Buffers (batch-norm statistics) are copied as they are."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages = list(self.model.parameters())
        self._sources = list(model.parameters())
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """average += weight · (source − average), with ``weight`` a 0-d tensor on the device."""
        moves = torch._foreach_sub([source.detach() for source in self._sources], self._averages)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(self._averages, moves)
        for average, source in self._buffers:
            average.copy_(source)
