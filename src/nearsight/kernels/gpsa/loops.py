"""GPSA on a CPU by compiled loops: both halves in one pass over the keys (`kernels.tokens`). The backend `numba`."""

import torch
from torch import Tensor

from .. import tokens
from ..dispatch import Backend
from .layout import Positions
from .plain import gated_axis_weights

FEWEST_IMAGES = 4  # that share one P


def _refusal(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    return tokens.refusal(qkv)


def _run(qkv: Tensor, positions: Positions, scale: float | None = None) -> Tensor:
    amount, axes = 1 - positions.gate.sigmoid(), gated_axis_weights(positions)
    return tokens.token_attention(qkv, amount, axes, scale=scale).transpose(1, 2)


def _reservation(qkv: Tensor, positions: Positions, scale: float | None = None) -> str | None:
    if not torch.compiler.is_compiling() and qkv.shape[0] < FEWEST_IMAGES:  # a compiled graph is for any batch
        return f"making P for fewer than {FEWEST_IMAGES} images takes longer than it saves"
    return None


NUMBA = Backend("numba", _refusal, _run, _reservation)
