"""Every model by name: `create_model`, `list_models`, `find_models`."""

from collections.abc import Callable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def register(name: str, builder: Callable[..., nn.Module], **defaults: Any) -> None:
    """Make `builder(**defaults)` known as `name`; a caller's arguments override the defaults."""
    if name in _BUILDERS:
        raise ValueError(f"a model named {name!r} is registered already")

    def build(**arguments: Any) -> nn.Module:
        return builder(**{**defaults, **arguments})

    _BUILDERS[name] = build


def list_models(pattern: str = "*") -> list[str]:
    """Names of all models that match a shell pattern, in alphabetical order."""
    return sorted(name for name in _BUILDERS if fnmatchcase(name, pattern))


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Build a model by name; arguments go to its class (`num_classes`, `in_chans`, `img_size`, ablation switches…)."""
    if name not in _BUILDERS:
        near = get_close_matches(name, _BUILDERS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`nearsight models` lists them all"
        raise ValueError(f"no model is named {name!r}; {hint}")
    try:
        return _BUILDERS[name](**arguments)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"model {name!r} does not take these arguments: {error}") from error
