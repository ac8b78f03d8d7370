"""Whether anybody looks at what happens inside a module: shortcuts are for those that nobody watches."""

from torch import nn
from torch.nn.modules import module as every_module


def _hooks_everywhere() -> bool:
    return bool(
        every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
        or every_module._global_backward_hooks
        or every_module._global_backward_pre_hooks
    )


def _is_touched(module: nn.Module) -> bool:
    """Whether a hook stands on it, or a `forward` of its own, as adapters and offloading give it."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ) or ("forward" in module.__dict__)


def is_watched(*modules: nn.Module) -> bool:
    """Whether somebody may see, or change, what goes on in one of these or inside it."""
    return _hooks_everywhere() or any(_is_touched(inner) for module in modules for inner in module.modules())


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the module is what its kind computes and no more: no adapter, no quantised layer, no hook."""
    return type(module) is kind and not _is_touched(module) and not _hooks_everywhere()
