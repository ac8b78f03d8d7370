"""Launches of Triton kernels that torch.compile sees: inductor repeats them without the Python around them."""

from collections.abc import Callable
from typing import Any

import torch
from triton import JITFunction


def wrap_triton(kernel: Callable[..., Any]) -> Any:
    """`torch.library.wrap_triton`, which in torch 2.11 refuses kernels of Triton's interpreter.

    Call it by this name and with the kernel's: torch looks for both in an operator's source, for its caches' keys.
    """
    return torch.library.wrap_triton(kernel) if isinstance(kernel, JITFunction) else kernel
