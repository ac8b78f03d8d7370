"""The stem's spatially aware values, mixing weights instead of pixels: the same sum with 1/M of the products."""

import torch
from torch import Tensor

from ..functional import stem as reference


def spatially_aware_values(x: Tensor, value_weights: Tensor, mixture: Tensor) -> Tensor:
    """x [B,H,W,in], W_V [M,out,in], p [k,k,M] → v [B,H,W,out]; one k×k table of matrices serves every block.

    On the meta device, where only arithmetic is counted, the equation stands as written.
    """
    if x.is_meta:
        return reference.spatially_aware_values(x, value_weights, mixture)
    block = mixture.shape[0]
    weight = torch.einsum("abm,moi->aboi", mixture, value_weights).flatten(0, 1)
    values = torch.einsum("brcpi,poi->brcpo", reference.to_blocks(x, block), weight)
    return reference.from_blocks(values, block)
