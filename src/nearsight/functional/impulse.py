"""A convolutional start by content weights alone: query and key projections whose first maps are single impulses.

Structured initialisation (Zheng et al., arXiv 2505.19985) starts a plain ViT near a convolution without adding anything
to it. Tokens carry a position embedding E [N, D]; a head's projections are solved so that E W_qᵀ W_k Eᵀ is large where
the key lies at the head's offset from the query. It is ConViT's Eq. 5 reached without v_pos and without a gate.
"""

import torch
from torch import Tensor

from ..geometry import Grid

SHARPNESS = 10.0
"""How far the logit at the offset lies above the mean logit, on tokens of positions alone."""
CONTENT_DEVIATION = 0.5
"""What content is expected to add to a channel of E, whose own mean square is one: the solution is steady under it."""


def impulse_maps(offsets: Tensor, grid_size: Grid) -> Tensor:
    """Maps [n, N, N] that are one where the key lies at offset (row, col) from the query, else zero.

    Beyond the image's edge the nearest patch is meant, as with replicate padding.
    """
    height, width = grid_size
    row, col = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    rows = (row + offsets[:, 0, None, None].long()).clamp(0, height - 1)
    cols = (col + offsets[:, 1, None, None].long()).clamp(0, width - 1)
    return torch.nn.functional.one_hot((rows * width + cols).flatten(1), height * width).to(torch.float32)


def impulse_projections(positions: Tensor, maps: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """W_q and W_k, [n, head_dim, D] each, by which softmax(E W_qᵀ W_k Eᵀ / √head_dim) is near each of the maps.

    positions E [N, D], maps [n, N, N]. M = W_qᵀ W_k minimises ‖E M Eᵀ − (map − its mean)‖² with content of
    CONTENT_DEVIATION added to E, by ridge regression on either side; the head has its head_dim largest singular values.
    """
    tokens, wanted = positions.double(), maps.double()
    ridge = len(tokens) * CONTENT_DEVIATION**2 * tokens.square().mean()
    gram = tokens.mT @ tokens + ridge * torch.eye(tokens.shape[1], dtype=tokens.dtype)
    solve = torch.linalg.solve(gram, tokens.mT)  # [D, N]
    u, s, vh = torch.linalg.svd(solve @ (wanted - wanted.mean(dim=-1, keepdim=True)) @ solve.mT)
    root = s[:, :head_dim].sqrt()[:, :, None]
    query, key = root * u.mT[:, :head_dim], root * vh[:, :head_dim]
    logits = tokens @ query.mT @ key @ tokens.mT
    height = ((logits * wanted).sum(-1) - logits.mean(-1)).mean(-1)
    scale = (SHARPNESS * head_dim**0.5 / height).sqrt()[:, None, None]
    return (scale * query).to(positions.dtype), (scale * key).to(positions.dtype)
