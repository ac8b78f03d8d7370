"""Parameters and arithmetic of a model, counted on the meta device: no memory, no time, nothing missed.

On a CPU torch's counter overlooks fused attention; on the meta device it sees every product.
A FLOP here is one multiplication or one addition; a multiply-add is two. ConViT's Table 1 counts multiply-adds.
"""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .registry import create_model
from .size import as_pair


class Cost(NamedTuple):
    parameters: int
    flops: int  # for one image, multiply and add counted as two

    @property
    def multiply_adds(self) -> int:
        return self.flops // 2


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_cost(model: nn.Module, img_size: int | tuple[int, int], in_chans: int = 3) -> Cost:
    """Cost of one forward pass of one image of the given size."""
    on_meta = copy.deepcopy(model).to("meta").eval()
    images = torch.empty(1, in_chans, *as_pair(img_size), device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        on_meta(images)
    return Cost(count_parameters(model), counter.get_total_flops())


def cost_by_name(name: str, img_size: int | tuple[int, int] | None = None, **arguments) -> Cost:
    """Cost of a registered model, at its own input size (224 for ResNets) unless another is given."""
    with torch.device("meta"):
        model = create_model(name, **arguments)
    own_size = getattr(model, "img_size", 224)
    return count_cost(model, own_size if img_size is None else img_size, model.in_chans)
