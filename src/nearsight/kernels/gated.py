"""Gated positional attention (ConViT's Eq. 6-7), split so that no B×n×N×N map is ever made.

Both maps are distributions over keys and the gate mixes them after their softmaxes, hence

    GPSA = (1 − σ(λ)) · softmax(scale · q kᵀ) v + σ(λ) · P v,        P = softmax(v_posᵀ r_δ)

where P has no batch axis. Its logit a‖δ‖² + b·δ_row + c·δ_col has no cross term, so on any H×W grid P = P_row ⊗ P_col.

Shapes: B batch, n heads, N = H·W positions in row-major order, d channels of a head.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Backend, Verdict, choose, verdicts


def axis_weights(v_pos: Tensor, pos_bias: Tensor, grid_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """P_row [n, H, H] and P_col [n, W, W], queries by keys, from v_pos [n, 3] over (‖δ‖², δ_row, δ_col).

    `pos_bias` [n] is cancelled by the softmax; it enters the row logits once so that it stays part of the graph.
    """
    squared, by_row, by_col = v_pos.unbind(dim=-1)
    maps = []
    for size, linear, constant in ((grid_size[0], by_row, pos_bias), (grid_size[1], by_col, None)):
        place = torch.arange(size, device=v_pos.device, dtype=v_pos.dtype)
        offset = place[None, :] - place[:, None]
        logits = squared[:, None, None] * offset**2 + linear[:, None, None] * offset
        if constant is not None:
            logits = logits + constant[:, None, None]
        maps.append(logits.softmax(dim=-1))
    return maps[0], maps[1]


def _separable(
    query: Tensor, key: Tensor, value: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor,
    *, grid_size: tuple[int, int], scale: float | None = None,
) -> Tensor:  # fmt: skip
    height, width = grid_size
    by_row, by_col = axis_weights(v_pos, pos_bias, grid_size)
    gate_value = torch.sigmoid(gate)[:, None, None]
    content = F.scaled_dot_product_attention(query, key, value, scale=scale)
    image = value.unflatten(2, (height, width))
    image = torch.einsum("nrh,bnhwd->bnrwd", (gate_value * by_row).to(value.dtype), image)
    position = torch.einsum("ncw,bnrwd->bnrcd", by_col.to(value.dtype), image).flatten(2, 3)
    return torch.addcmul(position, (1 - gate_value).to(value.dtype), content)


BACKENDS = [Backend("separable", lambda *arguments, **options: None, _separable)]


def gated_positional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v_pos: Tensor,
    pos_bias: Tensor,
    gate: Tensor,
    *,
    grid_size: tuple[int, int],
    scale: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """q, k, v [B,n,N,d], v_pos [n,3] over (‖δ‖², δ_row, δ_col), pos_bias [n], gate λ [n] → [B,n,N,d].

    `scale` multiplies the content logits; None means 1/√d.
    """
    arguments = (query, key, value, v_pos, pos_bias, gate)
    options = {"grid_size": grid_size, "scale": scale}
    return choose(BACKENDS, backend, *arguments, **options).run(*arguments, **options)


def explain_gated_positional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v_pos: Tensor,
    pos_bias: Tensor,
    gate: Tensor,
    *,
    grid_size: tuple[int, int],
    scale: float | None = None,
) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot."""
    return verdicts(BACKENDS, query, key, value, v_pos, pos_bias, gate, grid_size=grid_size, scale=scale)
