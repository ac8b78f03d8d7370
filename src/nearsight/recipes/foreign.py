"""The one gate for what a run's settings may ask of other libraries: the settings may come from a stranger.

`config.yaml` of a run is read by `predict`, `eval`, `inspect`, `explore`, `resume`, `compare` and for a teacher. All of
them make a recipe of it, a recipe asks here, and models of timm are built by `classification.model.timm_model`, which
asks here again:

- A model of timm has a name of timm's own list. Names by which timm looks elsewhere (`hf-hub:…`, `local-dir:…`, paths)
  are refused.
- It is given arguments that its class takes, and no others. Those by which timm fetches, reads or writes files
  (`pretrained`, `pretrained_cfg`, `checkpoint_path`, `cache_dir`, …) belong to no class.
- Their values are numbers, truth values, words, and lists of these; nothing that could be a path or an address.
- A field that makes nearsight connect is declared by `option(…, connects=True)`. It counts where a command or a Python
  program sets it. What a file says of it does not count: `off_in_files` and `refuse_connections` see to that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

PREFIX = "timm:"
"""How the names of timm's models begin here."""

CONVERTED = "converted"
"""The argument of any model, timm's too, that nearsight itself reads: which of its convolutions are attention.
`convert.rebuilt` takes nothing in it but the options that it knows."""

_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)  # an architecture, perhaps with the tag of its weights
_WORD = re.compile(r"[\w-]{0,64}", re.ASCII)
_MOST_VALUES, _DEEPEST_LIST = 64, 2
_CONNECTING_ARGUMENTS = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def check_model(model: str, options: Mapping[str, Any]) -> None:
    """A ``ValueError`` where a recipe's model is one of timm and asks for what no run may have. Does not load timm."""
    if not model.startswith(PREFIX):
        return  # ours: `models.registry.create_model` knows every argument
    check_name(model.removeprefix(PREFIX))
    for name, value in options.items():
        if name == CONVERTED:
            continue
        if name in _CONNECTING_ARGUMENTS:
            raise ValueError(
                f"model_options must leave out {name!r}: a run neither fetches weights nor reads them from elsewhere; "
                "name those to start from by --weights"
            )
        if not _is_plain(value, _DEEPEST_LIST):
            raise ValueError(
                f"model_options: {name} must be a number, a word, true or false, or a short list of these for a model "
                f"of timm; got {value!r:.100}"
            )


def check_name(name: str) -> None:
    """A ``ValueError`` where timm would look for a model of this name anywhere but in its own list."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{PREFIX}{name:.100} is no name of timm's list; addresses, hubs and folders are not read")


def check_arguments(name: str, arguments: Collection[str], known: Collection[str]) -> None:
    """A ``ValueError`` where one of the arguments is not among those that the class of a timm model takes."""
    for argument in arguments:
        if argument not in known:
            listed = ", ".join(sorted(known))
            raise ValueError(f"timm cannot build {name!r} with the argument {argument!r}; its class takes {listed}")


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, list | tuple):
        return depth > 0 and len(value) <= _MOST_VALUES and all(_is_plain(inner, depth - 1) for inner in value)
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float)


def connecting(kind: type) -> list[str]:
    """The fields of a recipe that make nearsight connect."""
    return [field.name for field in dataclasses.fields(kind) if field.metadata["connects"]]


def off_in_files(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's file says, without leave to connect: it is a record of what once was allowed.

    Older runs may say `pretrained` of a model of timm. They have their own weights by now.
    """
    options = fields.get("model_options")
    if isinstance(options, dict) and isinstance(options.get("pretrained"), bool):
        fields = {**fields, "model_options": {k: value for k, value in options.items() if k != "pretrained"}}
    return {**fields, **{name: False for name in connecting(kind) if name in fields}}


def refuse_connections(kind: type, stated: Mapping[str, Any], asked: Collection[str]) -> None:
    """A ``ValueError`` where a file that a person names would connect and the command itself does not decide."""
    for name in connecting(kind):
        if stated.get(name) and name not in asked:
            option = name.replace("_", "-")
            raise ValueError(f"{name}: a file cannot make a command connect; add --{option}, or --no-{option}")
