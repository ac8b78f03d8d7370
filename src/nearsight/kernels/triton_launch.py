"""Launches of Triton kernels that torch.compile sees: inductor repeats them without the Python around them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton import JITFunction

# torch.compile's caches on disk know a graph by its operators and their arguments, not by what the backward pass
# launches: with this among them, no kernel of an earlier installation is ever launched.
EDITION = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


def wrap_triton(kernel: Callable[..., Any]) -> Any:
    """`torch.library.wrap_triton`, which in torch 2.11 refuses kernels of Triton's interpreter.

    Call it by this name and with the kernel's: torch looks for both in an operator's source, for its caches' keys.
    """
    return torch.library.wrap_triton(kernel) if isinstance(kernel, JITFunction) else kernel
