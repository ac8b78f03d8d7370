"""Every private symbol of torch that nearsight uses, and what is done where a release has none. Of Triton it uses none.

All are looked for once, at import (`MISSING`). Without one, the function that needs it returns the value with which
plain operators run, or torch dispatches our operators itself: the same results, slower. Not listed, because torch
keeps them for users: `torch._foreach_*`, which its pages document under these names, and operators under `torch.ops`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .later import constant_when_compiled


class Symbol(NamedTuple):
    name: str
    why: str
    since: str
    """The release of torch that brought it; 2.11 is the oldest that nearsight takes."""
    without: str


SYMBOLS = (
    Symbol(
        "torch.compiler._is_exporting_flag",
        "torch 2.11 takes `torch.compiler.is_exporting()` for true under torch.compile as well; the flag does not",
        "2.7",
        "compiled models run plain operators, as exported ones do",
    ),
    Symbol(
        "torch._C._len_torch_dispatch_stack",
        "whether a dispatch mode (a FLOP counter, a tracer) is to see every operator",
        "2.0",
        "every call of an operator goes through torch's dispatcher",
    ),
    Symbol(
        "torch._C._functorch.get_dynamic_layer_stack_depth",
        "whether torch.func transforms the call: vmap, grad and jvp know no rule for our operators",
        "2.11 or before",
        "plain operators run",
    ),
    Symbol(
        "torch.autograd.forward_ad._current_level",
        "whether forward derivatives are being taken: those of our operators would silently be zero",
        "1.8",
        "plain operators run",
    ),
    Symbol(
        "torch.autograd._profiler_enabled",
        "whether a profiler is to list every operator by its name",
        "2.11 or before",
        "every call of an operator goes through torch's dispatcher",
    ),
    Symbol(
        "torch._C._has_storage",
        "whether a tensor has memory of its own that a kernel can read; a batch of vmap's has none",
        "2.11 or before",
        "every call of an operator goes through torch's dispatcher",
    ),
    Symbol(
        "torch.Tensor._is_zerotensor",
        "whether a tensor stands for zeros that nobody has written to memory",
        "1.11",
        "every call of an operator goes through torch's dispatcher",
    ),
    *(
        Symbol(
            f"torch.nn.{place}_{when}_hooks",
            "whether a hook is called for every module, or this one: it must see calls that a faster form would skip",
            "2.0 or before",
            "modules are called as they are",
        )
        for place in ("modules.module._global", "Module().")
        for when in ("forward", "forward_pre", "backward", "backward_pre")
    ),
)


def _exists(name: str) -> bool:
    found: object = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part.removesuffix("()"), None)
        if part.endswith("()") and callable(found):
            found = found()
    return found is not None


def find_missing() -> frozenset[str]:
    """Names of SYMBOLS that this torch does not have."""
    return frozenset(symbol.name for symbol in SYMBOLS if not _exists(symbol.name))


MISSING = find_missing()


def exporting() -> bool:
    """Whether a graph is being exported, which holds plain operators only."""
    if "torch.compiler._is_exporting_flag" in MISSING:
        return torch.compiler.is_exporting()
    return torch.compiler._is_exporting_flag


def intercepted() -> bool:
    """Whether something intercepts the operators that are called: torch.compile, a tracer, a counter."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return "torch._C._len_torch_dispatch_stack" in MISSING or torch._C._len_torch_dispatch_stack() > 0


def profiled() -> bool:
    """Whether a profiler records the operators that are called."""
    return "torch.autograd._profiler_enabled" in MISSING or torch.autograd._profiler_enabled()


@constant_when_compiled  # a call that torch 2.11 cannot trace; torch.compile guards the stack itself
def _transforming() -> bool:
    if "torch._C._functorch.get_dynamic_layer_stack_depth" in MISSING:
        return True
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def _differentiating_forward() -> bool:
    if "torch.autograd.forward_ad._current_level" in MISSING:
        return True
    return torch.autograd.forward_ad._current_level >= 0


def plain_operators_needed() -> str | None:
    """Why custom operators must not run here, or None. Their forward derivatives would silently be zero."""
    if exporting():
        return "an exported graph holds plain operators only"
    if _transforming():
        return "torch.func transforms plain operators only"
    if _differentiating_forward():
        return "forward derivatives are of plain operators only"
    return None


def readable(tensor: Tensor) -> bool:
    """Whether a kernel may read its memory: no subclass, no batch of vmap's, nothing that torch has yet to compute."""
    if "torch._C._has_storage" in MISSING or "torch.Tensor._is_zerotensor" in MISSING:
        return False
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and torch._C._has_storage(tensor)
    return plain and not tensor.is_neg() and not torch.Tensor._is_zerotensor(tensor)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module calls hooks as well, its own or those of every module; not those of its children."""
    if MISSING and any("_hooks" in name for name in MISSING):
        return True
    everywhere = torch.nn.modules.module
    return bool(
        everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
        or everywhere._global_backward_hooks
        or everywhere._global_backward_pre_hooks
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
