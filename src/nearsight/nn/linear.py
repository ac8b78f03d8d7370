"""Linear layers that are fast on every processor, and are torch's own all the same."""

from torch import Tensor, nn

from .. import kernels
from .watched import is_bare


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x): on a CPU by `kernels.linear`, where nobody has made more of the layer than torch's own."""
    if type(x) is Tensor and x.is_cpu and is_bare(layer, nn.Linear):
        return kernels.linear(x, layer.weight, layer.bias)
    return layer(x)
