"""Checks that several layers and models share; each error names the value and the remedy."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.dispatch import Backend, named


def require_positive(**values: int) -> None:
    """Whole numbers of at least 1, by the names the caller knows them by."""
    _require_whole(1, values)


def require_count(**values: int) -> None:
    """Whole numbers of at least 0."""
    _require_whole(0, values)


def _require_whole(least: int, values: dict[str, int]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def require_switch(**values: bool) -> None:
    """True or False: text would count as True, whatever it says."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")


def require_finite(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, not {value!r}")


def require_share(**values: float) -> None:
    """Rates and probabilities: from 0 up to, but not including, 1."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), not {value!r}")


def require_divisible(dim: int, num_heads: int, what: str = "dim") -> int:
    """Channels of a head, or an error that names the nearest width that works."""
    require_positive(**{what: dim, "num_heads": num_heads})
    if dim % num_heads:
        nearest = max(round(dim / num_heads), 1) * num_heads
        raise ValueError(f"{what}={dim} is not divisible by num_heads={num_heads}; use {what}={nearest}, for example")
    return dim // num_heads


def require_backend(backends: Sequence[Backend], name: str | None) -> None:
    """A name that is wrong is better found before a model is trained than in its first step."""
    if name is not None:
        named(backends, name)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def require_images(x: Tensor, channels: int, dtype: torch.dtype) -> None:
    """A batch of images [B, channels, H, W] in the type of the weights (under autocast any floating type will do)."""
    if x.ndim != 4:
        raise ValueError(f"expected images [batch, {channels}, height, width], got shape {list(x.shape)}")
    if x.shape[1] != channels:
        remedy = (
            "; move the channels to axis 1" if x.shape[-1] == channels else f"; build it with {x.shape[1]} channels"
        )
        raise ValueError(f"expected {channels} channels, got {x.shape[1]} in shape {list(x.shape)}{remedy}")
    if x.shape[2] < 1 or x.shape[3] < 1:
        raise ValueError(f"images of {x.shape[2]}x{x.shape[3]} have no pixels")
    if not x.is_floating_point():
        raise ValueError(f"expected floating-point images, got {x.dtype}; divide by 255 and normalise them first")
    # The meta device knows no autocast, and would not say so but raise.
    autocast = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
    if x.dtype != dtype and not autocast:
        raise ValueError(f"images are {x.dtype} but the weights {dtype}; convert one with .to(…), or use autocast")


def require_tokens(x: Tensor, dim: int, grid_size: tuple[int, int] | None = None) -> None:
    """A batch of token sequences [B, N, dim], with N = H·W where a grid is given."""
    if x.ndim != 3 or x.shape[-1] != dim:
        raise ValueError(f"expected tokens [batch, tokens, {dim}], got shape {list(x.shape)}")
    if grid_size is not None and x.shape[1] != grid_size[0] * grid_size[1]:
        raise ValueError(
            f"grid_size={tuple(grid_size)} has {grid_size[0] * grid_size[1]} patches, but the input has {x.shape[1]} "
            "tokens; a positional layer takes patches only, without class token"
        )
