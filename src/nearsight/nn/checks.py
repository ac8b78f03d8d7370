"""Checks that several layers and models share; each error names the value and the remedy."""

from torch import Tensor


def require_divisible(dim: int, num_heads: int, what: str = "dim") -> int:
    """Channels of a head, or an error that names the nearest width that works."""
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, not {num_heads}")
    if dim % num_heads:
        nearest = max(round(dim / num_heads), 1) * num_heads
        raise ValueError(f"{what}={dim} is not divisible by num_heads={num_heads}; use {what}={nearest}, for example")
    return dim // num_heads


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def require_images(x: Tensor, channels: int) -> None:
    """A batch of images [B, channels, H, W]."""
    if x.ndim != 4:
        raise ValueError(f"expected images [batch, {channels}, height, width], got shape {list(x.shape)}")
    if x.shape[1] != channels:
        remedy = (
            "; move the channels to axis 1" if x.shape[-1] == channels else f"; build it with {x.shape[1]} channels"
        )
        raise ValueError(f"expected {channels} channels, got {x.shape[1]} in shape {list(x.shape)}{remedy}")


def require_tokens(x: Tensor, dim: int, grid_size: tuple[int, int] | None = None) -> None:
    """A batch of token sequences [B, N, dim], with N = H·W where a grid is given."""
    if x.ndim != 3 or x.shape[-1] != dim:
        raise ValueError(f"expected tokens [batch, tokens, {dim}], got shape {list(x.shape)}")
    if grid_size is not None and x.shape[1] != grid_size[0] * grid_size[1]:
        raise ValueError(
            f"grid_size={tuple(grid_size)} has {grid_size[0] * grid_size[1]} patches, but the input has {x.shape[1]} "
            "tokens; a positional layer takes patches only, without class token"
        )
