"""SASA's local attention (Ramachandran et al. 2019, Eq. 3), in plain PyTorch: the specification of every fast path.

    y_ij = Σ_{ab ∈ N_k(i,j)} softmax_ab( q_ijᵀ k_ab + q_ijᵀ r_{a−i,b−j} ) v_ab

with r_{a−i,b−j} = concat(r_{a−i}, r_{b−j}): half of each head's channels meet a row embedding, half a column embedding.
There is no 1/√d. The window's k² keys are copied out here, which costs k² times the memory: slow, and plain to read.

Shapes: B batch, H×W the key grid, I×J the query grid, n heads, d channels of a head, k window, g = 1 (shared) or n.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import window_padding

Border = Literal["mask", "zeros"]


def query_key_value(projected: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Query, key and value [B,H,W,n,d] as views of one projection [B,H,W,p,n,d]; if p is 2 there is no key."""
    query, *key, value = projected.unbind(3)
    return query, key[0] if key else None, value


def windows(keys: Tensor, kernel_size: int, stride: int = 1) -> Tensor:
    """The k×k neighbourhood of every (strided) query, zeros outside the image: [B,H,W,n,d] → [B,I,J,n,d,k,k]."""
    before, after = window_padding(kernel_size)
    padded = F.pad(keys, (0, 0, 0, 0, before, after, before, after))
    return padded.unfold(1, kernel_size, stride).unfold(2, kernel_size, stride)


def windows_inside(grid_size: tuple[int, int], kernel_size: int, stride: int = 1, *, device=None) -> Tensor:
    """Which keys of each window lie inside the image, bool [I, J, k, k]."""
    inside = torch.ones(1, *grid_size, 1, 1, device=device)
    return windows(inside, kernel_size, stride)[0, :, :, 0, 0] > 0


def relative_logits(query: Tensor, row_embedding: Tensor, col_embedding: Tensor) -> Tensor:
    """q_ijᵀ r_{a−i,b−j} for every offset of the window: [B,I,J,n,d] and two [g,k,d/2] → [B,I,J,n,k,k]."""
    num_heads, kernel_size = query.shape[-2], row_embedding.shape[1]
    by_row = row_embedding[:, :, None].expand(num_heads, -1, kernel_size, -1)
    by_col = col_embedding[:, None, :].expand(num_heads, kernel_size, -1, -1)
    return torch.einsum("bijnd,nrcd->bijnrc", query, torch.cat((by_row, by_col), dim=-1))


def local_attention_weights(
    query: Tensor,
    key: Tensor | None,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    grid_size: tuple[int, int],
    stride: int = 1,
    border: Border = "mask",
) -> Tensor:
    """How much each query attends to each key of its window, [B,I,J,n,k,k]; sums to one over the last two axes.

    Without `key` the content term qᵀk is left out, without embeddings the position term qᵀr (SASA's Tables 5 and 6).
    `border="mask"` takes keys outside the image out of the softmax; `"zeros"` keeps them as zero vectors, so that
    a query at the edge spends attention on nothing. The paper does not say which it used.
    """
    batch, height, width, num_heads, _ = query.shape
    logits = query.new_zeros(batch, height, width, num_heads, kernel_size, kernel_size)
    if key is not None:
        logits = logits + torch.einsum("bijnd,bijndrc->bijnrc", query, windows(key, kernel_size, stride))
    if (row_embedding is None) != (col_embedding is None):
        raise ValueError("row and column embeddings come together: give both or neither")
    if row_embedding is not None and col_embedding is not None:
        logits = logits + relative_logits(query, row_embedding, col_embedding)
    if border == "mask":
        inside = windows_inside(grid_size, kernel_size, stride, device=query.device)
        logits = logits.masked_fill(~inside[None, :, :, None], float("-inf"))
    return logits.flatten(-2).softmax(dim=-1).unflatten(-1, (kernel_size, kernel_size))


def local_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
) -> Tensor:
    """Eq. 3: query [B,I,J,n,d], key and value [B,H,W,n,d], row and column embeddings [g,k,d/2] → [B,I,J,n,d].

    With `stride` s the queries sit on every s-th pixel: I = ⌈H/s⌉, J = ⌈W/s⌉.
    """
    weights = local_attention_weights(
        query, key, row_embedding, col_embedding,
        kernel_size=kernel_size, grid_size=(value.shape[1], value.shape[2]), stride=stride, border=border,
    )  # fmt: skip
    return apply_local_weights(weights, value, stride)


def apply_local_weights(weights: Tensor, value: Tensor, stride: int = 1) -> Tensor:
    """Each query's weighted sum over its window: [B,I,J,n,k,k] and [B,H,W,n,d] → [B,I,J,n,d]."""
    return torch.einsum("bijnrc,bijndrc->bijnd", weights, windows(value, weights.shape[-1], stride))
