"""Weights in files that may come from anyone: safetensors, or a .pth that torch reads as data only."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nearsight.runs.folder import RunFolder


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """The weights in a run folder (its selected ones), a .safetensors file or a .pth file. Never runs code from it."""
    path = Path(source)
    if path.is_dir():
        return RunFolder(path).selected_weights()
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return _read_pth(path)


def _read_pth(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} was refused: it holds more than tensors, or is damaged; take the weights as a .safetensors file"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state dict of tensors")
    return content
