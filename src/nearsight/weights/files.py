"""Weights in files that may come from anyone: safetensors, or a .pth that torch reads as data only."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from nearsight.runs.folder import RunFolder
from nearsight.text import printable
from nearsight.untrusted.files import check_plain_file
from nearsight.untrusted.limits import WEIGHT_BYTES
from nearsight.weights.bounds import check_file, check_tensors


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """The weights in a run folder (its selected ones), a .safetensors file or a .pth file. Never runs code from it."""
    path = Path(source)
    if path.is_dir():
        return RunFolder(path).selected_weights()
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}")
    if path.suffix == ".safetensors":
        try:
            check_plain_file(path, WEIGHT_BYTES)
            return load_file(path)
        except (SafetensorError, OSError, ValueError, MemoryError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return _read_pth(path)


def _read_pth(path: Path) -> dict[str, Tensor]:
    try:
        check_file(path)
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"{path} was refused: {error}; take the weights as a .safetensors file") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises nearly every type on damaged input
        held = f"more than tensors ({foreign})" if (foreign := _foreign_names(path)) else "more than tensors"
        raise ValueError(
            f"{path} was refused: it holds {held}, or is damaged; take the weights as a .safetensors file"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state dict of tensors")
    try:
        check_tensors(content.items())
    except ValueError as error:
        raise ValueError(f"{path} was refused: {error}") from error
    return content


def _foreign_names(path: Path) -> str:
    """Functions and classes that a .pth names and that reading tensors does not need; none of them is called."""
    try:
        return printable(", ".join(get_unsafe_globals_in_checkpoint(path)[:3]))
    except Exception:  # whatever a damaged file makes of it: the caller says that it cannot be read
        return ""
