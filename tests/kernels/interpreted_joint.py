"""GPSA's joint kernels run by Triton's interpreter on the CPU, compared with the equation in float64; prints JSON.

Started by test_gpsa_joint.py in a process of its own: the interpreter must be asked for before Triton is imported.
Memory that torch hands out uninitialised is filled with NaN, so that an element no kernel wrote shows.
"""

import json
import os
import warnings
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"

import torch
from watching_operators import same_bits_torchs_way, takes_no_gradient_for_none

from nearsight.functional.attention import gated_positional_attention
from nearsight.kernels.gpsa import joint, positions
from nearsight.kernels.gpsa import joint_plans as plans
from nearsight.kernels.gpsa.joint_plans import ColumnsPlan, ForwardPlan, RowsPlan
from nearsight.kernels.gpsa.layout import Positions

# Padded keys and queries go through -inf and inf before they are dropped.
warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
torch.use_deterministic_algorithms(True)

TWO = (RowsPlan(16, 1), ColumnsPlan(16, 16, 1))
IN_USE = (plans.FORWARD, (plans.ROWS, plans.COLUMNS))
PADDED = {"spare_channels": False}
# name: (batch, heads, grid, head_dim, scale, forward plan, backward plans)
CASES = {
    "odd_rectangle": (2, 3, (3, 7), 48, None, ForwardPlan(16, 1), TWO),
    "prime_row": (2, 2, (1, 37), 24, 0.3, ForwardPlan(16, 1), TWO),
    "one_tile": (1, 2, (3, 5), 8, None, ForwardPlan(64, 4), (RowsPlan(64, 4), ColumnsPlan(64, 64, 4))),
    "padded": (
        2, 2, (5, 7), 48, None, ForwardPlan(32, 1, **PADDED),
        (RowsPlan(32, 1, **PADDED), ColumnsPlan(32, 16, 1, **PADDED)),
    ),
    "all_tiles_of_an_image": (2, 2, (5, 10), 16, None, ForwardPlan(16, 1, all_tiles=True), TWO),
    "all_tiles_with_a_rest": (1, 2, (5, 7), 64, None, ForwardPlan(32, 1, all_tiles=True), TWO),
    "plans_in_use": (2, 2, (5, 13), 24, 0.3, *IN_USE),
    "plans_in_use_48": (1, 3, (7, 19), 48, None, *IN_USE),
}  # fmt: skip


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).item()


def case(name: str) -> dict[str, tuple[float, float]]:
    """Relative errors of the output and of every gradient: the kernels', and the equation's in the same type."""
    batch, heads, grid, dim, scale, forward, (rows, columns) = CASES[name]
    plans.FORWARD, plans.ROWS, plans.COLUMNS = forward, rows, columns
    tokens = grid[0] * grid[1]
    # Neither is dense: a slice of something wider, as a projection with more outputs would leave it, aligned or not.
    qkv = torch.randn(batch, tokens, 3, heads, dim + (3 if batch == 2 else 8), dtype=torch.float16)[..., :dim]
    gradient = torch.randn(batch, tokens, heads + 1, dim, dtype=torch.float16)[:, :, 1:].transpose(1, 2)
    inputs = (qkv, torch.randn(heads, 3), torch.randn(heads))

    def run(function, dtype=None):
        leaves = [x.detach().to(x.dtype if dtype is None else dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        grads = torch.autograd.grad(out, leaves, gradient.to(out.dtype))
        return [out, *grads[0].unbind(2), torch.cat([grad.flatten() for grad in grads[1:]])]

    def ours(qkv, v_pos, gate):
        return joint.run(qkv, Positions(v_pos, torch.zeros(heads), gate, grid), scale)

    def equation(qkv, *parameters):
        return gated_positional_attention(*qkv.permute(2, 0, 3, 1, 4), *parameters, grid_size=grid, scale=scale)

    # oneDNN is left out: its half-precision kernels need instructions that some virtual machines announce and lack.
    with torch.backends.mkldnn.flags(enabled=False):
        low = run(equation, torch.float16)
    by_kernels = run(ours)
    operators = ("attend_gated", "attend_gated_backward", "gated_weights", "gated_weights_backward")
    assert same_bits_torchs_way(lambda: run(ours), by_kernels, *operators), name
    results = zip(by_kernels, low, run(equation, torch.float64), strict=True)
    names = ("output", "query", "key", "value", "parameters")
    errors = {n: (error(a, exact), error(low, exact)) for n, (a, low, exact) in zip(names, results, strict=True)}
    with torch.no_grad():
        out = ours(*inputs)
    errors["without_gradients"] = (error(out, run(equation, torch.float64)[0]), errors["output"][1])
    return errors


def operators() -> dict[str, dict[str, str]]:
    """torch.library.opcheck of both operators, on strided inputs; test_traced.py sees to torch.compile."""
    plans.FORWARD = ForwardPlan(16, 1)
    plans.ROWS, plans.COLUMNS = TWO
    qkv = torch.randn(1, 3, 15, 2, 16, dtype=torch.float16).transpose(1, 2)
    weights, share = torch.rand(2, 15, 16, dtype=torch.float16), torch.rand(2)
    inputs = [x.detach().requires_grad_() for x in (qkv, weights, share)]
    with torch.no_grad():
        _, log_sum = joint.attend_gated(*inputs, 0.25, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    check = partial(torch.library.opcheck, test_utils=checks, raise_exception=False)
    forward = check(joint.attend_gated.registered, (*inputs, 0.25, True))
    assert takes_no_gradient_for_none(joint.attend_gated(*inputs, 0.25, True)[0], inputs)
    gradient = torch.randn(1, 2, 15, 16, dtype=torch.float16)
    constants = (gradient, *(x.detach() for x in inputs), log_sum, 0.25)
    return {"forward": forward, "backward": check(joint.attend_gated_backward.registered, constants)}


if __name__ == "__main__":
    torch.manual_seed(int(os.environ["NEARSIGHT_TEST_SEED"]))
    positions.SIDE = 16  # several tiles even at these sizes
    print(json.dumps({"operators": operators(), **{name: case(name) for name in CASES}}, default=str))
