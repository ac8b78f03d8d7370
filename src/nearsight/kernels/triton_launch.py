"""Functions that launch Triton kernels, as operators of torch's, and the short way to them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton import JITFunction

from .compat import intercepted, profiled, readable

# torch.compile's caches on disk know a graph by its operators and their arguments, not by what the backward pass
# launches: with this among them, no kernel of an earlier installation is ever launched.
EDITION = hashlib.sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.rglob("*.py")))
).hexdigest()


def wrap_triton(kernel: Callable[..., Any]) -> Any:
    """`torch.library.wrap_triton` where launches are traced, the kernel itself where they are made.

    Kernels of Triton's interpreter are never wrapped: torch 2.11 refuses them. Call it by this name and with the
    kernel's: torch looks for both in an operator's source, for its caches' keys.
    """
    return torch.library.wrap_triton(kernel) if isinstance(kernel, JITFunction) and intercepted() else kernel


class Operator:
    """A function that launches kernels, as the operator `nearsight::<its name>`.

    torch.compile, tracers, dispatch modes and the profiler meet that one; inductor repeats its launches without the
    Python around them. Where none of them is there, torch's way to it is a quarter to a half of what a call costs the
    processor, which in eager mode is what a small model waits for. Then the function is called as it is, or through
    autograd's own `Function`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.definition: Any = torch.library.triton_op(f"nearsight::{function.__name__}", function, mutates_args=())
        self.registered = getattr(torch.ops.nearsight, function.__name__).default
        self.differentiable: type[torch.autograd.Function] | None = None

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        return self.definition.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any]) -> None:
        self.definition.register_autograd(backward, setup_context=setup_context)

        def forward(ctx: Any, *arguments: Any) -> Any:  # with a `setup_context` of its own autograd binds names first
            outputs = self.function(*arguments)
            setup_context(ctx, arguments, outputs)
            return outputs

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.differentiable = type(self.function.__name__, (torch.autograd.Function,), methods)

    def __call__(self, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if intercepted() or profiled() or not all(map(readable, tensors)):
            return self.registered(*arguments)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return self.function(*arguments)
        if self.differentiable is None:
            return self.registered(*arguments)  # whose derivative is an error that says so, also in second derivatives
        return self.differentiable.apply(*arguments)
