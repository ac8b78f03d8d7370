"""Whether anybody looks at what happens inside a module: shortcuts are for those that nobody watches."""

from torch import nn

from ..kernels.compat import has_hooks


def _is_touched(module: nn.Module) -> bool:
    """Whether a hook stands on it, or a `forward` of its own, as adapters and offloading give it."""
    return has_hooks(module) or ("forward" in module.__dict__)


def is_watched(*modules: nn.Module) -> bool:
    """Whether somebody may see, or change, what goes on in one of these or inside it."""
    return any(_is_touched(inner) for module in modules for inner in module.modules())


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the module is what its kind computes and no more: no adapter, no quantised layer, no hook."""
    return type(module) is kind and not _is_touched(module)
