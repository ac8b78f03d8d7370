"""SASA's attention stem: attention inside each block of pixels, with values that know where in the block they are.

    v_ab = ( Σ_m p(a,b,m) W_V^m ) x_ab,   p(a,b,m) = softmax_m( (emb_row(a) + emb_col(b))ᵀ ν_m )

a and b are the pixel's row and column inside its block; the mixture p is shared by all heads.
"""

import torch
from torch import Tensor


def to_blocks(x: Tensor, block: int) -> Tensor:
    """Cut a map into non-overlapping blocks: [B,H,W,...] → [B,H/block,W/block,block²,...]."""
    batch, height, width, *rest = x.shape
    x = x.reshape(batch, height // block, block, width // block, block, *rest)
    return x.transpose(2, 3).reshape(batch, height // block, width // block, block * block, *rest)


def from_blocks(x: Tensor, block: int) -> Tensor:
    """The inverse of `to_blocks`."""
    batch, rows, cols, _, *rest = x.shape
    x = x.reshape(batch, rows, cols, block, block, *rest).transpose(2, 3)
    return x.reshape(batch, rows * block, cols * block, *rest)


def value_mixture(row_embedding: Tensor, col_embedding: Tensor, mixture_embedding: Tensor) -> Tensor:
    """p(a,b,m): row and column embeddings [k, e], ν [M, e] → [k, k, M], summing to one over M."""
    position = row_embedding[:, None] + col_embedding[None, :]
    return (position @ mixture_embedding.T).softmax(dim=-1)


def spatially_aware_values(x: Tensor, value_weights: Tensor, mixture: Tensor) -> Tensor:
    """x [B,H,W,in], W_V [M,out,in], p [k,k,M] → v [B,H,W,out]: M projections of each pixel, mixed by its place."""
    block = mixture.shape[0]
    projected = torch.einsum("bhwi,moi->bhwmo", x, value_weights)
    tiled = mixture.repeat(x.shape[1] // block, x.shape[2] // block, 1)
    return torch.einsum("hwm,bhwmo->bhwo", tiled, projected)


def block_attention_weights(query: Tensor, key: Tensor, block: int) -> Tensor:
    """softmax(qᵀk) over the pixels of a query's own block: [B,H,W,n,d] → [B,H/k,W/k,n,k²,k²]; no scale, as in Eq. 3."""
    logits = torch.einsum("bijqnd,bijpnd->bijnqp", to_blocks(query, block), to_blocks(key, block))
    return logits.softmax(dim=-1)


def apply_block_weights(weights: Tensor, value: Tensor, block: int) -> Tensor:
    """Each pixel's weighted sum over its block: [B,H/k,W/k,n,k²,k²] and [B,H,W,n,d] → [B,H,W,n,d]."""
    return from_blocks(torch.einsum("bijnqp,bijpnd->bijqnd", weights, to_blocks(value, block)), block)


def block_attention(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    """Attention within each non-overlapping block: [B,H,W,n,d] → [B,H,W,n,d]."""
    return apply_block_weights(block_attention_weights(query, key, block), value, block)
