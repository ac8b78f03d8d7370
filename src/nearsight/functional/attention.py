"""ConViT's attention (d'Ascoli et al. 2021, Eq. 1–8), in plain PyTorch: the specification of every fast path.

Shapes: B batch, n heads, N = H·W patches, d channels of a head. Query, key and value are [B, n, N, d]; weights are
[B, n, N, N] and sum to one over the last axis. Symbols: λ is `gate`, σ(λ) `gate_value`, α `locality_strength`,
Δ `head_centers`, v_pos `v_pos` in the order (‖δ‖², δ_row, δ_col) of Eq. 5.
"""

import torch
from torch import Tensor

from ..geometry import Grid, axis_offsets, grid_distances, relative_embeddings


def attention_weights(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Eq. 1: A = softmax(QKᵀ / √d)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (scale * query @ key.transpose(-2, -1)).softmax(dim=-1)


def self_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
    """Eq. 3 for every head: A V."""
    return attention_weights(query, key, scale=scale) @ value


def convolutional_v_pos(head_centers: Tensor, locality_strength: float | Tensor) -> Tensor:
    """Eq. 5: v_pos = −α(1, −2Δ_row, −2Δ_col) [n, 3], so that v_posᵀr_δ = −α‖δ − Δ‖² up to a constant in δ."""
    ones = torch.ones_like(head_centers[:, :1])
    strength = torch.as_tensor(locality_strength, dtype=head_centers.dtype, device=head_centers.device)
    return -strength.reshape(-1, 1) * torch.cat((ones, -2 * head_centers), dim=-1)


def positional_logits(v_pos: Tensor, grid_size: Grid) -> Tensor:
    """v_posᵀ r_ij for every pair of patches: [n, 3] → [n, N, N]."""
    r = relative_embeddings(grid_size, device=v_pos.device, dtype=v_pos.dtype)
    return torch.einsum("hp,ijp->hij", v_pos, r)


def positional_weights(v_pos: Tensor, grid_size: Grid) -> Tensor:
    """P = softmax(v_posᵀ r): the positional half of Eq. 7, [n, N, N]; it has no batch axis."""
    return positional_logits(v_pos, grid_size).softmax(dim=-1)


def positional_axis_logits(square: Tensor, linear: Tensor, offset: Tensor) -> Tensor:
    """aδ² + bδ along one axis for every head: two [n] and offsets [queries, keys] → [n, queries, keys]."""
    return square[:, None, None] * offset.square() + linear[:, None, None] * offset


def positional_axis_weights(v_pos: Tensor, grid_size: Grid, pos_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """P split exactly into rows and columns: [n, H, H] and [n, W, W] with P[(i,j),(a,b)] = P_row[i,a] · P_col[j,b].

    The logit a‖δ‖² + bδ_row + cδ_col has no cross term, so its softmax over a rectangle is a product of two, whatever
    v_pos has become in training. `pos_bias` is the bias of the released weights' positional projection: the softmax
    cancels it; it enters the row logits so that it belongs to the graph like any other parameter.
    """
    square, row, col = v_pos.unbind(-1)
    weights: list[Tensor] = []
    for linear, length in ((row, grid_size[0]), (col, grid_size[1])):
        logits = positional_axis_logits(square, linear, axis_offsets(length, device=v_pos.device, dtype=v_pos.dtype))
        if pos_bias is not None and not weights:
            logits = logits + pos_bias[:, None, None]
        weights.append(logits.softmax(dim=-1))
    return weights[0], weights[1]


def positional_self_attention_weights(
    query: Tensor, key: Tensor, v_pos: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    """Eq. 4 (PSA): content and position meet before the softmax, softmax(QKᵀ + v_posᵀ r).

    Eq. 4 prints no 1/√d; Eq. 1 and the released code have it, and so does this.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = scale * query @ key.transpose(-2, -1) + positional_logits(v_pos, grid_size)
    return logits.softmax(dim=-1)


def gated_positional_attention_weights(
    query: Tensor, key: Tensor, v_pos: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> Tensor:
    """Eq. 6–7 (GPSA), literally: normalize[(1 − σ(λ)) softmax(QKᵀ) + σ(λ) softmax(v_posᵀ r)]."""
    gate_value = gate.sigmoid()[:, None, None]
    content = attention_weights(query, key, scale=scale)
    mixed = (1 - gate_value) * content + gate_value * positional_weights(v_pos, grid_size)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def gated_positional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    v_pos: Tensor,
    gate: Tensor,
    *,
    grid_size: Grid,
    scale: float | None = None,
) -> Tensor:
    """Eq. 6 for every head: [B, n, N, d]."""
    return gated_positional_attention_weights(query, key, v_pos, gate, grid_size=grid_size, scale=scale) @ value


def nonlocality(weights: Tensor, grid_size: Grid) -> Tensor:
    """Eq. 8: D_loc = (1/N) Σ_ij A_ij ‖δ_ij‖ in patches: weights [..., N, N] → [...]; a layer has its heads' mean."""
    distance = grid_distances(grid_size, device=weights.device, dtype=weights.dtype)
    return (weights * distance).sum(dim=(-2, -1)) / distance.shape[0]
