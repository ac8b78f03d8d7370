"""A linear layer that is fast on every processor."""

from torch import Tensor, nn

from .. import kernels


class Linear(nn.Linear):
    """`torch.nn.Linear` with the same parameters, by whichever library multiplies faster here (`kernels.linear`)."""

    def forward(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.weight, self.bias)
