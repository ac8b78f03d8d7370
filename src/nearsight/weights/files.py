"""Reading weights from files that may come from anyone: safetensors, or a .pth that torch reads as data only."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """The weights in a run folder (its selected ones), a .safetensors file or a .pth file. Never runs code from it."""
    path = Path(source)
    if path.is_dir():
        return selected_weights(RunFolder(path))
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return _read_pth(path)


def selected_weights(run: RunFolder) -> dict[str, Tensor]:
    """The weights that validation selected in ``run``: the averaged ones where those were better."""
    try:
        checkpoint = run.checkpoints().load_named("best")
    except DiskError as error:
        raise ValueError(str(error)) from error
    best = checkpoint.state.get("best") or {}
    group = best.get("weights", "model") if best.get("step") == checkpoint.step else "model"
    return checkpoint.tensors.get(group) or checkpoint.tensors["model"]


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str, *, new_head: bool = False) -> list[str]:
    """Put ``weights`` into ``model``; every mismatch is named in one error.

    With ``new_head``, a classifier whose shape differs keeps its fresh weights; their names are returned.
    """
    own = model.state_dict()
    fresh = [
        name
        for name, value in own.items()
        if new_head and name.split(".")[0] in ("head", "head_dist", "fc")
        if name in weights and weights[name].shape != value.shape
    ]
    missing = sorted(set(own) - set(weights))
    unknown = sorted(set(weights) - set(own))
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and name not in fresh and weights[name].shape != value.shape
    ]
    unfit = [name for name in own if name in weights and name not in fresh and not _fits(weights[name], own[name])]
    faults = [
        f"{label}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for label, names in (
            ("missing", missing),
            ("unknown", unknown),
            ("shapes", shapes),
            ("not finite or not numbers of this kind", unfit),
        )
        if names
    ]
    if faults:
        raise ValueError(f"{origin} does not fit the model: {'; '.join(faults)}")
    model.load_state_dict({name: own[name] if name in fresh else weights[name] for name in own})
    return fresh


def _fits(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _read_pth(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if "GLOBAL" in line or "nsupported" in line), ""
        )
        raise ValueError(
            f"{path} was refused: it holds more than tensors, or is damaged. {reason or 'Use a .safetensors file.'}"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state dict of tensors")
    return content
