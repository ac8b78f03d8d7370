"""What tests put in the way of operators."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """Passes every operator on: where it stands, calls go torch's way instead of the short one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def same_bits_torchs_way(run, results: list[torch.Tensor], *operators: str) -> bool:
    """Whether run() gives these results again when torch sees the operators, and that it did."""
    with Watching() as watching:
        again = run()
    assert {f"nearsight.{operator}.default" for operator in operators} <= set(watching.seen)
    return all(torch.equal(one, other) for one, other in zip(results, again, strict=True))


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def takes_no_gradient_for_none(output: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    """Whether the backward pass of `output` makes nothing of no gradient: what comes after it may give none."""
    grads = torch.autograd.grad(_NoGradient.apply(output).sum(), inputs, allow_unused=True)
    return all(grad is None or not grad.any() for grad in grads)
