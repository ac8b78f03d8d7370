"""SASA's attention stem with fewer products, and on a CPU its attention by compiled loops."""

import torch
from torch import Tensor

from ..functional import stem as reference
from . import tokens
from .linear_layer import linear

LARGEST_PRODUCT = 16  # pixels of a block; the product's zeros grow with their square


def _place_weights(value_weights: Tensor, mixture: Tensor) -> Tensor:
    """Σ_m p(a,b,m) W_V^m for every place of a block: W_V [M,out,in], p [k,k,M] → [k²,out,in]."""
    return torch.einsum("abm,moi->aboi", mixture, value_weights).flatten(0, 1)


def spatially_aware_values(x: Tensor, value_weights: Tensor, mixture: Tensor) -> Tensor:
    """x [B,H,W,in], W_V [M,out,in], p [k,k,M] → v [B,H,W,out], mixing weights instead of pixels: 1/M of the products.

    One k×k table of matrices serves every block. On the meta device, where only arithmetic is counted, the equation
    stands as written.
    """
    if x.is_meta:
        return reference.spatially_aware_values(x, value_weights, mixture)
    block = mixture.shape[0]
    values = torch.einsum("brcpi,poi->brcpo", reference.to_blocks(x, block), _place_weights(value_weights, mixture))
    return reference.from_blocks(values, block)


def project_blocks(x: Tensor, query_key: Tensor, value_weights: Tensor, mixture: Tensor) -> Tensor:
    """Query, key and spatially aware value of every pixel, block by block: [B,H,W,in] → [B,H/k,W/k,k²,3·out].

    query_key is [2,out,in], the others as above. A whole block is one row of one product, whose matrix has a pixel's
    own weights at its place and zeros elsewhere. With few input channels, as images have, zeros cost less than
    products of three channels, and the result lies in memory as attention reads it.
    """
    block = mixture.shape[0]
    pixels = reference.to_blocks(x, block)
    values = _place_weights(value_weights, mixture)
    if block**2 > LARGEST_PRODUCT:
        of_values = torch.einsum("brcpi,poi->brcpo", pixels, values)
        return torch.cat((linear(pixels, query_key.flatten(0, 1)), of_values), dim=-1)
    weights = torch.cat((query_key.flatten(0, 1).expand(len(values), -1, -1), values), dim=1)  # [k², 3·out, in]
    own_place = torch.eye(len(values), dtype=weights.dtype, device=weights.device)
    matrix = torch.einsum("poi,pq->poqi", weights, own_place).flatten(2).flatten(0, 1)
    return linear(pixels.flatten(3), matrix).unflatten(-1, (len(values), -1))


def block_attention(projected: Tensor) -> Tensor:
    """softmax(qᵀk) v within each block: query, key and value packed, [N,k²,3,n,d] → [N,k²,n,d]."""
    if tokens.refusal(projected) is None:
        return tokens.token_attention(projected, scale=1.0)
    query, key, value = (part[:, None] for part in projected.unbind(2))  # N maps of one row, one block each
    weights = torch.einsum("bijqnd,bijpnd->bijnqp", query[:, :, None], key[:, :, None]).softmax(dim=-1)
    return torch.einsum("bijnqp,bijpnd->bijqnd", weights, value[:, :, None])[:, 0, 0]
