"""A running average of the weights, kept on the device and updated without reading anything back."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def ema_weight(step: int, decay: float) -> float:
    """How far the average moves towards the weights after update ``step``: large at first, so that the random
    initialisation is soon forgotten, then 1 − decay."""
    return max(1 - decay, 9.0 / (10 + step))


class AveragedModel:
    """``average`` trails ``source``, of which it started as a copy. Buffers (batch-norm statistics) are copied."""

    def __init__(self, source: nn.Module, average: nn.Module) -> None:
        self.model = average.eval().requires_grad_(False)
        self._averages: list[Tensor] = list(average.parameters())
        self._sources: list[Tensor] = list(source.parameters())
        self._buffers = list(zip(average.buffers(), source.buffers(), strict=True))

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """average += weight · (source − average), with ``weight`` a 0-d tensor on the device."""
        moves = torch._foreach_sub(self._sources, self._averages)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(self._averages, moves)
        for average, source in self._buffers:
            average.copy_(source)
