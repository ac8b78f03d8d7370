"""One tensor of weights made to fit a model of another image size, number of channels, or window."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from nearsight.geometry import window_offsets
from nearsight.models.embed import resampled_positions

_FIRST_LAYERS = ("patch_embed.", "stem.")
_WINDOWS = ("row_embedding", "col_embedding")


def adapted(name: str, value: Tensor, own: Tensor, model: nn.Module) -> tuple[Tensor, str] | None:
    """`value` in the shape of the model's `own` tensor, and in words what was done; None where nothing is known."""
    owner, _, last = name.rpartition(".")
    module: Any = model.get_submodule(owner)
    if value.ndim != own.ndim:
        return None
    differing = [axis for axis, (old, new) in enumerate(zip(value.shape, own.shape, strict=True)) if old != new]
    if last == "pos_embed" and differing == [1]:
        return _positions(name, value, own, module)
    if last in _WINDOWS and value.ndim == 3 and differing == [1]:
        return _window(value, own.shape[1]), f"{name} from a window of {value.shape[1]} to {own.shape[1]}"
    if _is_first_layer(name, model) and len(differing) == 1 and value.ndim > 2:
        axis = differing[0]
        fitted = _channels(value, axis, own.shape[axis])
        return fitted, f"{name} from {value.shape[axis]} channels to {own.shape[axis]}"
    return None


def _positions(name: str, value: Tensor, own: Tensor, module: Any) -> tuple[Tensor, str] | None:
    """Bicubic, as timm does it. The old grid is taken for a square, as that of published weights and of runs is."""
    grid = getattr(module, "grid_size", None) or getattr(getattr(module, "patch_embed", None), "grid_size", None)
    if grid is None:
        return None
    prefix = own.shape[1] - grid[0] * grid[1]
    side = math.isqrt(max(value.shape[1] - prefix, 0))
    if prefix < 0 or side == 0 or side * side != value.shape[1] - prefix:
        return None
    resampled = resampled_positions(value, (side, side), (grid[0], grid[1]), prefix)
    return resampled, f"{name} from {side}×{side} patches to {grid[0]}×{grid[1]}"


def _window(value: Tensor, kernel_size: int) -> Tensor:
    """Each offset keeps its embedding; one that the old window did not have gets that of the nearest it had."""
    old = window_offsets(value.shape[1])
    places = window_offsets(kernel_size).clamp(int(old[0]), int(old[-1])) - int(old[0])
    return value[:, places]


def _is_first_layer(name: str, model: nn.Module) -> bool:
    """The layer that sees the pictures; timm's models say its name."""
    config = getattr(model, "pretrained_cfg", None)
    first = config.get("first_conv") if isinstance(config, dict) else None
    return name.removeprefix("backbone.").removeprefix("vit.").startswith(_FIRST_LAYERS) or (
        isinstance(first, str) and name.startswith(f"{first}.")
    )


def _channels(value: Tensor, axis: int, wanted: int) -> Tensor:
    """The sum over channels for one; else the channels in turn, scaled so that a grey picture gives the same."""
    count = value.shape[axis]
    if wanted == 1:
        return value.sum(axis, keepdim=True)
    repeats = [1] * value.ndim
    repeats[axis] = -(-wanted // count)
    return value.repeat(repeats).narrow(axis, 0, wanted) * (count / wanted)
