"""What tests hold counted costs against: SASA's formulas for one pixel."""

import torch

from nearsight.cost import Cost, count_cost
from nearsight.models import create_model


def cost_by_name(name: str, img_size: int | tuple[int, int] | None = None, **arguments) -> Cost:
    """Cost of a registered model, at its own `img_size` unless another is given."""
    with torch.device("meta"):
        model = create_model(name, **arguments)
    return count_cost(model, model.img_size if img_size is None else img_size, model.in_chans)  # type: ignore[arg-type]


def convolution_multiply_adds(kernel_size: int, width: int) -> int:
    """A k×k convolution from d to d channels, per pixel: k²d²; its parameters are as many."""
    return kernel_size**2 * width**2


def local_attention_multiply_adds(kernel_size: int, width: int, *, factored: bool = True) -> int:
    """Local attention of d channels, per pixel: 3d² + 2k²d + kd (q, k, v; qᵀk and the weighted sum; qᵀr).

    `factored=False` counts qᵀr for each of the k² offsets, as SASA's tables do; the rebuttal and our kernels need
    it only once for each row and each column of the window.
    """
    relative = kernel_size * width if factored else kernel_size**2 * width
    return 3 * width**2 + 2 * kernel_size**2 * width + relative
