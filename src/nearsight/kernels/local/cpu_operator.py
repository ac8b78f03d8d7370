"""Local attention's backends for a CPU, as operators of torch's: `cpu` computes by tiles, `numba` by compiled loops."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..compat import plain_operators_needed
from ..dispatch import Backend
from ..later import register_flop_formula
from .window import Embeddings, Window, local_attention_flops

_INPUTS = "Tensor projected, Tensor? row_embedding, Tensor? col_embedding, int kernel_size, bool mask"


def refusal(projected: Tensor, embeddings: Embeddings, window: Window) -> str | None:
    """Why an operator on the CPU cannot run on these arguments, or None."""
    reason = plain_operators_needed()
    if reason is not None:
        return reason
    if projected.device.type != "cpu":
        return f"the tensors are on {projected.device.type}, not on the CPU"
    if window.stride != 1:
        return f"stride {window.stride} is not 1"
    if projected.numel() == 0:
        return "there is nothing to compute"
    return None


def cpu_backend(
    name: str,
    forward: Callable[..., Tensor],
    backward: Callable[..., list[Tensor]],
    refusal: Callable[..., str | None] = refusal,
) -> Backend:
    """A backend that calls `nearsight::local_attention_NAME`, an operator that torch.compile and autograd know.

    forward(projected, row, col, kernel_size, mask) → output [B, H, W, n, d]; backward(gradient, …the same) → gradients
    of the projection and of both embeddings, empty where those are absent.
    """

    called = f"local_attention_{name}"

    def define(name: str, function: Callable[..., Any], schema: str) -> Any:
        # Autocast is for what users call; inside, the type of the arithmetic is chosen.
        plain = torch.autocast("cpu", enabled=False)(function)
        return torch.library.custom_op(f"nearsight::{name}", plain, mutates_args=(), device_types="cpu", schema=schema)

    operator = define(called, forward, f"({_INPUTS}) -> Tensor")
    derivative = define(f"{called}_backward", backward, f"(Tensor gradient, {_INPUTS}) -> Tensor[]")

    @operator.register_fake
    def _(projected, row, col, kernel_size, mask):
        return projected.new_empty((*projected.shape[:3], *projected.shape[4:]))

    @derivative.register_fake
    def _(gradient, projected, row, col, kernel_size, mask):
        return [projected.new_empty(0) if x is None else x.new_empty(x.shape) for x in (projected, row, col)]

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.options = inputs[3:]

    def differentiate(ctx, gradient):
        inputs = ctx.saved_tensors
        gradients = derivative(gradient, *inputs, *ctx.options)
        return *(None if x is None else g for x, g in zip(inputs, gradients, strict=True)), None, None

    operator.register_autograd(differentiate, setup_context=setup_context)

    @register_flop_formula(getattr(torch.ops.nearsight, called))
    def _(projected, row, col, kernel_size, mask, out_shape=None, **_):
        return local_attention_flops(projected, kernel_size, row is not None)

    @register_flop_formula(getattr(torch.ops.nearsight, f"{called}_backward"))
    def _(gradient, projected, row, col, kernel_size, mask, out_shape=None, **_):
        return 2 * local_attention_flops(projected, kernel_size, row is not None)

    def run(projected: Tensor, embeddings: Embeddings, window: Window) -> Tensor:
        output = operator(projected, *(embeddings or (None, None)), window.kernel_size, window.border == "mask")
        return output if window.stride == 1 else output[:, :: window.stride, :: window.stride]

    return Backend(name, refusal, run)
