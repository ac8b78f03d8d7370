"""Parameters and arithmetic of a model, counted on the meta device: no memory, no time, nothing missed.

A FLOP is one multiplication or one addition; a multiply-add is two. On a CPU torch's counter overlooks fused attention;
on the meta device it sees every product, with the equations **as the papers write them**, which kernels regroup. Two
papers, two ways of counting, found by fitting the rows they print:

- SASA's tables count both halves of a multiply-add, and qᵀr in full, k²d multiply-adds a pixel (`count_cost`). Its
  rebuttal's 3d² + k²d + kd counts qᵀr once for each row and column offset.
- ConViT's Table 1 counts what modules do (linear, convolution, norm, activation; a multiply-add is one) and so leaves
  out QKᵀ and AV, which no module holds (`module_multiply_adds`). Eleven of its twelve rows then round to what is
  printed; ConViT-S+ makes 9.49, just under its printed 10.
"""

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from nearsight.models.model import as_pair
from nearsight.models.registry import create_model
from nearsight.models.vit import VisionTransformer
from nearsight.nn.positional import GatedPositionalSelfAttention, PositionalSelfAttention


class Cost(NamedTuple):
    parameters: int
    flops: int  # for one image, multiply and add counted as two


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _meta_forward(model: nn.Module, img_size: int | tuple[int, int], in_chans: int) -> None:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    with torch.no_grad():
        model(torch.empty(1, in_chans, *as_pair(img_size), device="meta", dtype=dtype))


def count_cost(model: nn.Module, img_size: int | tuple[int, int], in_chans: int = 3) -> Cost:
    """Cost of one forward pass of one image of the given size."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to load, and costs that are known need none of it

    on_meta = copy.deepcopy(model).to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        _meta_forward(on_meta, img_size, in_chans)
    return Cost(count_parameters(model), counter.get_total_flops())


def model_cost(name: str, img_size: int | tuple[int, int] | None = None) -> dict[str, Any]:
    """What `nearsight models` shows of a registered model: input, parameters, operations in both papers' ways."""
    with torch.device("meta"):
        model = create_model(name)
    size = as_pair(model.img_size if img_size is None else img_size)  # type: ignore[arg-type]
    cost = count_cost(model, size)
    row: dict[str, Any] = {"input": list(size), "parameters": cost.parameters, "flops": cost.flops}
    if isinstance(model, VisionTransformer):
        row["module_multiply_adds"] = module_multiply_adds(model, size)
    return row


def known_costs() -> dict[str, dict[str, Any]]:
    """`model_cost` of every registered model, as it was counted once and as tests hold it."""
    return json.loads(Path(__file__).with_name("costs.json").read_text())


def module_multiply_adds(model: VisionTransformer, img_size: int | tuple[int, int]) -> int:
    """Multiply-adds of a ViT's modules, one for each product with its sum, bias, scale or activation, as in Table 1.

    The released positional projection is a linear module on every pair of patches; it is counted as such.
    """
    total = 0

    def count(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += output.numel() * (module.in_features + (module.bias is not None))
        elif isinstance(module, nn.Conv2d):
            total += output.numel() * (module.weight[0].numel() + (module.bias is not None))
        elif isinstance(module, nn.LayerNorm):
            total += 2 * output.numel()
        elif isinstance(module, nn.GELU):
            total += output.numel()
        elif isinstance(module, GatedPositionalSelfAttention | PositionalSelfAttention):
            tokens = inputs[0].shape[1]
            total += tokens * tokens * module.num_heads * (3 + 1)

    on_meta = copy.deepcopy(model).to("meta").eval()
    handles = [module.register_forward_hook(count) for module in on_meta.modules()]
    _meta_forward(on_meta, img_size, on_meta.in_chans)
    for handle in handles:
        handle.remove()
    return total
