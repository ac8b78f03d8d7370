"""GPSA on a CPU by compiled loops: both halves in one pass over the keys (`kernels.tokens`). The backend `numba`."""

from torch import Tensor

from .. import tokens
from ..dispatch import Backend
from .layout import Positions
from .plain import gated_axis_weights


def _refusal(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    return tokens.refusal(qkv)


def _run(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    amount, axes = 1 - positions.gate.sigmoid(), gated_axis_weights(positions)
    return tokens.token_attention(qkv, amount, axes, scale=scale).transpose(1, 2)


NUMBA = Backend("numba", _refusal, _run)
