"""What every backend of local attention is called with, beside the packed projection."""

from typing import NamedTuple

from torch import Tensor

from ...functional.local import Border


class Window(NamedTuple):
    """Which pixels a query sees, and which pixels are queries."""

    kernel_size: int
    stride: int = 1
    border: Border = "mask"


Embeddings = tuple[Tensor, Tensor] | None
"""By row and by column, [1 or n, k, d/2] each."""


def local_attention_flops(projected_shape, kernel_size: int, has_position: bool) -> int:
    """q·k and a·v over the k² keys of each window, q·r over its k rows and k columns with half the channels each.

    Two for each multiply-add of a product: less than the equation as the paper writes it. What a backward pass
    computes again is left out.
    """
    batch, height, width, parts, num_heads, head_dim = projected_shape
    products = kernel_size**2 * (parts - 1) + kernel_size * has_position
    return 2 * batch * height * width * num_heads * head_dim * products
