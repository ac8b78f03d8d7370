"""Whether anybody looks at what happens inside a module: shortcuts are for those that nobody watches."""

from torch import nn
from torch.nn.modules import module as every_module


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_watched(*modules: nn.Module) -> bool:
    """Whether a hook stands on one of these or inside it, or on every module there is."""
    anywhere = every_module._global_forward_hooks or every_module._global_forward_pre_hooks
    return bool(anywhere) or any(_has_hooks(inner) for module in modules for inner in module.modules())


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the module is what its kind computes and no more: no adapter, no quantised layer, no hook."""
    return type(module) is kind and not _has_hooks(module)
