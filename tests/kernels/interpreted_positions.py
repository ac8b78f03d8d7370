"""GPSA's positional weights by Triton's interpreter against the equation in float64; prints JSON.

Started by test_gpsa_positions.py in a process of its own: the interpreter must be asked for before Triton is imported.
Memory that torch hands out uninitialised is filled with NaN, so that an element no kernel wrote shows.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from nearsight.functional.attention import positional_weights
from nearsight.kernels.gpsa import positions

torch.use_deterministic_algorithms(True)
GRIDS = {"odd": (3, 7), "prime": (5, 13), "flat": (1, 19), "one": (1, 1)}


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm().clamp(min=1e-12)).item()


def equation(parameters, gradients, height: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    v_pos, gate = (x.detach().to(dtype).requires_grad_() for x in parameters)
    strength = gate.sigmoid()
    outputs = [strength[:, None, None] * positional_weights(v_pos, (height, width)), 1 - strength]
    return outputs + list(torch.autograd.grad(outputs, (v_pos, gate), [x.to(dtype) for x in gradients]))


def case(height: int, width: int, heads: int = 3) -> dict[str, tuple[float, float]]:
    """Relative errors of ours and of the equation in float32."""
    tokens = height * width
    parameters = torch.randn(heads, 3), torch.randn(heads), torch.randn(heads)
    gradients = torch.randn(heads, tokens, tokens), torch.randn(heads)

    leaves = [x.clone().requires_grad_() for x in parameters]
    weights, share = positions.gated_weights(*leaves, height, width, torch.float32, "")
    assert not weights[:, :, tokens:].any(), "the columns beyond the keys must be zeros"
    padded = torch.nn.functional.pad(gradients[0], (0, weights.shape[-1] - tokens), value=3.0)
    v_pos, bias, gate = torch.autograd.grad((weights, share), leaves, (padded, gradients[1]))
    assert not bias.any(), "the softmax cancels the bias"

    ours = [weights[:, :, :tokens], share, v_pos, gate]
    low, exact = (equation(parameters[::2], gradients, height, width, t) for t in (torch.float32, torch.float64))
    names = ("weights", "share", "v_pos", "gate")
    return {n: (error(a, c), error(b, c)) for n, a, b, c in zip(names, ours, low, exact, strict=True)}


if __name__ == "__main__":
    torch.manual_seed(int(os.environ["NEARSIGHT_TEST_SEED"]))
    positions.ELEMENTS = 64  # several tiles even at these sizes
    results = {name: case(*grid) for name, grid in GRIDS.items()}
    arguments = (torch.randn(2, 3), torch.randn(2), torch.randn(2))
    torch.library.opcheck(
        positions.gated_weights.registered, (*(x.requires_grad_() for x in arguments), 3, 5, torch.float16, ""),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
    print(json.dumps(results))
