"""Every model by name: `register`, `list_models`, `create_model`."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from torch import nn

from ..convert import rebuilt
from ..recipes.foreign import CONVERTED
from ..text import typed

# Modules that register models; each is imported when a name is not among those of the ones before it.
PROVIDERS = ("nearsight.models.sizes", "nearsight.detection.retinanet")

_MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {}


def register(name: str, builder: Callable[..., nn.Module], **defaults: Any) -> None:
    """Make `builder(**defaults)` known as `name`; a caller's arguments override the defaults.

    A builder whose `backbone` is a registered model's name takes that model's arguments as well.
    """
    if name in _MODELS:
        raise ValueError(f"a model named {name!r} is registered already")
    _MODELS[name] = (builder, defaults)


def _is_known(name: str) -> bool:
    return name in _MODELS or any(import_module(provider) and name in _MODELS for provider in PROVIDERS)


def list_models(pattern: str = "*") -> list[str]:
    """Names of all models that match a shell pattern, in alphabetical order."""
    for provider in PROVIDERS:
        import_module(provider)
    return sorted(name for name in _MODELS if fnmatchcase(name, pattern))


def backbone_of(name: str) -> str | None:
    """The registered model that a detector stands on; None for a classifier or an unknown name."""
    return _MODELS[name][1].get("backbone") if _is_known(name) else None


def arguments_of(name: str, backbone: str | None = None) -> list[str]:
    """What the model of this name takes, its backbone's arguments last; nothing where there is no such model."""
    if not _is_known(name):
        return []
    own = [one.name for one in inspect.signature(_MODELS[name][0]).parameters.values() if one.kind != one.VAR_KEYWORD]
    below = backbone or backbone_of(name)
    return own + [argument for argument in (arguments_of(below) if below else []) if argument not in own]


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Build a model by name; arguments go to its class (`num_classes`, `in_chans`, `img_size`, ablation switches…).

    `converted` are arguments of `nearsight.convert.to_attention`, such as {"stages": [4]}: the model is that one with
    attention in the place of convolutions.
    """
    converted = arguments.pop(CONVERTED, None)
    if not isinstance(name, str) or not _is_known(name):
        hint = did_you_mean(str(name), list_models(), f"`{typed('models')}` lists them all")
        raise ValueError(f"no model is named {name!r}; {hint}")
    builder, defaults = _MODELS[name]
    known = arguments_of(name, arguments.get("backbone"))
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(argument, known, f"it takes {', '.join(known)}")
            raise ValueError(f"model {name!r} does not take the argument {argument!r}; {hint}")
    model = builder(**{**defaults, **arguments})
    if converted is not None:
        model = rebuilt(model, converted)
        arguments[CONVERTED] = converted
    model.made_as = name, arguments  # type: ignore[assignment]
    return model


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The second half of an error about a name: those that are near it, or what else to say."""
    near = get_close_matches(word, known, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
