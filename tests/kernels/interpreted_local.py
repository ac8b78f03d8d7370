"""The Triton kernels run by Triton's interpreter on the CPU, compared with the equations in float64; prints JSON.

Torch's own checks of the operators are there too.

Started by test_local_triton.py in a process of its own: the interpreter must be asked for before Triton is imported.
Memory that torch hands out uninitialised is filled with NaN, so that an element no kernel wrote shows.
"""

import json
import os
import warnings
from functools import partial
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from watching_operators import same_bits_torchs_way, takes_no_gradient_for_none

from nearsight.functional.local import local_attention, query_key_value
from nearsight.kernels.gpsa import fused, positions
from nearsight.kernels.local import launch, triton
from nearsight.kernels.local.window import Window

# Threads beyond the image divide zero by zero; what they compute is never stored.
warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
torch.use_deterministic_algorithms(True)

# name: (batch, height, width, heads, head_dim, kernel_size, border, type, content, positions, sets of embeddings)
LOCAL = {
    "threads_bfloat16": (1, 5, 7, 3, 6, 7, "mask", torch.bfloat16, True, True, 1),
    "threads_float32_heads": (2, 5, 7, 3, 8, 3, "zeros", torch.float32, True, True, 3),
    "threads_even_window": (1, 3, 5, 2, 12, 4, "mask", torch.float32, True, False, 1),
    "threads_no_content": (1, 5, 7, 1, 8, 3, "zeros", torch.float16, False, True, 1),
    "dense_heads": (1, 5, 9, 2, 16, 7, "mask", torch.float16, True, True, 2),
    "dense_padded_channels": (2, 3, 7, 1, 24, 5, "zeros", torch.float16, True, True, 1),
    "dense_no_content": (1, 5, 7, 1, 16, 3, "mask", torch.float16, False, True, 1),
    "dense_even_window": (1, 5, 7, 1, 32, 4, "zeros", torch.float16, True, False, 1),
    "dense_wide_window": (1, 7, 11, 1, 16, 11, "mask", torch.float16, True, True, 1),
    "dense_coarse_terms": (2, 5, 11, 2, 16, 7, "mask", torch.float16, True, True, 1),
    "dense_coarse_terms_of_large_logits": (2, 5, 11, 2, 16, 7, "mask", torch.float16, True, True, 1),
}
MIX = {"odd": (2, 3, 35, 24), "prime": (3, 1, 37, 16)}  # name: (batch, heads, tokens, head_dim)


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).item()


def equation(projected: torch.Tensor, *embeddings: torch.Tensor, **options) -> torch.Tensor:
    return local_attention(*query_key_value(projected), *embeddings, **options)


def kernels(projected: torch.Tensor, *embeddings: torch.Tensor, kernel_size: int, border: str) -> torch.Tensor:
    return triton.run(projected, embeddings or None, Window(kernel_size, border=border))


def local_case(name: str) -> dict[str, tuple[float, float]]:
    """Relative errors of the output and of every gradient: the kernels', and the equation's in the same type."""
    batch, height, width, heads, dim, size, border, dtype, content, positions, sets = LOCAL[name]
    coarse = "coarse" in name  # the path of bfloat16, whose matrices Triton's interpreter cannot multiply, in float16
    scale, offset = (8.0, -2000.0) if "large" in name else (1.0, 0.0)  # terms beyond float16's range
    projected = torch.randn(batch, height, width, 3 if content else 2, heads, dim).mul(scale).to(dtype)
    embeddings = [torch.randn(sets, size, dim // 2) * scale + offset for _ in range(2 * positions)]
    gradient = torch.randn(batch, height, width, heads, dim).to(dtype)

    def run(function, type_of_all=None):
        inputs = (projected, *embeddings)
        leaves = [x.detach().to(x.dtype if type_of_all is None else type_of_all).requires_grad_() for x in inputs]
        out = function(*leaves, kernel_size=size, border=border)
        grad_projected, *grads = torch.autograd.grad(out, leaves, gradient.to(out.dtype))
        return [out, *grad_projected.unbind(3), *grads]

    # oneDNN is left out: its half-precision kernels need instructions that some virtual machines announce and lack.
    with torch.backends.mkldnn.flags(enabled=False):
        low = run(equation, torch.bfloat16 if coarse else dtype)
    with mock.patch.dict(launch.TERM_PARTS, {torch.float16: 1} if coarse else {}):
        ours = run(kernels)
        operators = ("local_attention", "local_attention_backward")
        assert same_bits_torchs_way(lambda: run(kernels), ours, *operators), name
    results = zip(ours, low, run(equation, torch.float64), strict=True)
    names = ["output", "query", *["key"] * content, "value", *["row", "col"] * positions]
    errors = {n: (error(ours, exact), error(low, exact)) for n, (ours, low, exact) in zip(names, results, strict=True)}
    if dtype == torch.bfloat16:
        # Triton's interpreter cannot multiply bfloat16 matrices, by which the embeddings' gradient is computed.
        del errors["row"], errors["col"]
    return errors


def mix_case(name: str) -> dict[str, float]:
    batch, heads, tokens, dim = MIX[name]
    content, value, gradient = (
        torch.randn(batch, tokens, heads, dim, dtype=torch.float16).transpose(1, 2) for _ in range(3)
    )
    weights, scale = torch.rand(heads, tokens, tokens, dtype=torch.float16), torch.rand(heads)
    leaves = [x.detach().requires_grad_() for x in (content, value, weights, scale)]
    out = fused.mix_positions(leaves[0], leaves[1], F.pad(leaves[2], (0, -tokens % 16)), leaves[3])
    ours = [out, *torch.autograd.grad(out, leaves, gradient)]
    padded = F.pad(leaves[2], (0, -tokens % 16))
    lean = checkpoint(fused.mix_positions, *leaves[:2], padded, leaves[3], use_reentrant=False)
    assert torch.equal(torch.autograd.grad(lean, leaves, gradient)[0], ours[1])
    leaves = [x.detach().double().requires_grad_() for x in (content, value, weights, scale)]
    out = leaves[3][:, None, None] * leaves[0] + leaves[2] @ leaves[1]
    exact = [out, *torch.autograd.grad(out, leaves, gradient.double())]
    names = ("output", "content", "value", "weights", "scale")
    return {key: error(a, b) for key, a, b in zip(names, ours, exact, strict=True)}


def operators() -> dict[str, dict[str, str]]:
    """torch.library.opcheck of both operators, on a strided projection; test_traced.py sees to torch.compile."""
    projected = torch.randn(1, 5, 3, 3, 2, 16, dtype=torch.float16).transpose(1, 2)
    embeddings = [torch.randn(1, 3, 8) for _ in range(2)]
    inputs = [x.requires_grad_() for x in (projected, *embeddings)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    check = partial(torch.library.opcheck, test_utils=checks, raise_exception=False)
    forward = check(triton.local_attention.registered, (*inputs, 3, True, True, ""))
    assert takes_no_gradient_for_none(kernels(*inputs, kernel_size=3, border="mask"), inputs)
    constants = [x.detach() for x in inputs]
    output, lse = triton.local_attention(*constants, 3, True, True, "")
    given = (torch.randn_like(output), *constants, output, lse, 3, True)
    return {"forward": forward, "backward": check(triton.local_attention_backward.registered, given)}


if __name__ == "__main__":
    torch.manual_seed(int(os.environ["NEARSIGHT_TEST_SEED"]))
    fused.ROWS = positions.SIDE = fused.DEPTH = 16  # several tiles even at these sizes
    compared = {"local": {n: local_case(n) for n in LOCAL}, "mix": {n: mix_case(n) for n in MIX}}
    print(json.dumps({"operators": operators(), **compared}, default=str))
