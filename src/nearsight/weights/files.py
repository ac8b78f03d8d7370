"""Weights in files that may come from anyone: safetensors, or a .pth that torch reads as data only."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from nearsight.text import printable
from nearsight.untrusted.files import check_plain_file
from nearsight.untrusted.limits import WEIGHT_BYTES
from nearsight.weights.bounds import check_file, check_tensors

HARMLESS = (argparse.Namespace,)
"""Classes beside tensors that published checkpoints hold: the options that a program was called with. They only keep
values; everything else that torch does not take for data is refused."""

CONTAINERS = ("state_dict_ema", "model_ema", "model", "state_dict")
"""Under which keys a checkpoint of a training program has its weights; averaged ones first, as timm takes them."""

_DEEPEST = 3  # containers in one another

WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""


def read_file(path: Path) -> dict[str, Tensor]:
    """The weights in a .safetensors file, or in any other as torch saves it. Never runs code from it."""
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}")
    if path.suffix == ".safetensors":
        try:
            check_plain_file(path, WEIGHT_BYTES)
            return load_file(path)
        except (SafetensorError, OSError, ValueError, MemoryError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return _without_wrappers(_state_dict(_read_pth(path), path))


def _read_pth(path: Path) -> Any:
    try:
        check_file(path)
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"{path} was refused: {error}; take the weights as a .safetensors file") from error
    try:
        with safe_globals(list(HARMLESS)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises nearly every type on damaged input
        held = f"more than tensors ({foreign})" if (foreign := _foreign_names(path)) else "more than tensors"
        raise ValueError(
            f"{path} was refused: it holds {held}, or is damaged; take the weights as a .safetensors file"
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The names and tensors in what was read, out of a training program's container where they are in one."""
    for _ in range(_DEEPEST):
        if isinstance(content, dict):
            content = next((content[key] for key in CONTAINERS if isinstance(content.get(key), dict)), content)
    named = isinstance(content, dict) and content and all(isinstance(name, str) for name in content)
    if not named or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state dict of tensors")
    try:
        check_tensors(content.items())
    except ValueError as error:
        raise ValueError(f"{path} was refused: {error}") from error
    return dict(content)


def _without_wrappers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    while prefix := next((one for one in WRAPPERS if all(name.startswith(one) for name in weights)), None):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _foreign_names(path: Path) -> str:
    """Functions and classes that a .pth names and that reading tensors does not need; none of them is called."""
    known = {f"{one.__module__}.{one.__qualname__}" for one in HARMLESS}
    try:
        names = [name for name in get_unsafe_globals_in_checkpoint(path) if name not in known]
    except Exception:  # whatever a damaged file makes of it: the caller says that it cannot be read
        return ""
    return printable(", ".join(names[:3]))
