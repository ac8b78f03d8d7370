"""Every model by name: `register`, `list_models`, `create_model`."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

_MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {}


def register(name: str, builder: Callable[..., nn.Module], **defaults: Any) -> None:
    """Make `builder(**defaults)` known as `name`; a caller's arguments override the defaults."""
    if name in _MODELS:
        raise ValueError(f"a model named {name!r} is registered already")
    _MODELS[name] = (builder, defaults)


def list_models(pattern: str = "*") -> list[str]:
    """Names of all models that match a shell pattern, in alphabetical order."""
    return sorted(name for name in _MODELS if fnmatchcase(name, pattern))


def arguments_of(name: str) -> list[str]:
    """What the model of this name takes; nothing where there is none of it."""
    return list(inspect.signature(_MODELS[name][0]).parameters) if name in list_models() else []


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Build a model by name; arguments go to its class (`num_classes`, `in_chans`, `img_size`, ablation switches…)."""
    if not isinstance(name, str) or name not in _MODELS:
        raise ValueError(
            f"no model is named {name!r}; {did_you_mean(str(name), _MODELS, '`nearsight models` lists them all')}"
        )
    builder, defaults = _MODELS[name]
    known = arguments_of(name)
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(argument, known, f"it takes {', '.join(known)}")
            raise ValueError(f"model {name!r} does not take the argument {argument!r}; {hint}")
    return builder(**{**defaults, **arguments})


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The second half of an error about a name: those that are near it, or what else to say."""
    near = get_close_matches(word, known, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
