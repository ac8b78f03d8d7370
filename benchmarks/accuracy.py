"""The kernels on this GPU against their equations in float64, beside the equations in the same type.

    PYTHONPATH=src python benchmarks/accuracy.py --seed 1

Local attention and GPSA, as they are and compiled, with sizes that change and so become symbolic. Odd and prime sizes,
fresh inputs, and all memory that torch hands out filled with NaN (but to compiled code), so that an element that no
kernel wrote shows. Every case runs twice: the bits must be the same where every kernel is ours; GPSA beyond 256
positions has torch's attention in it, whose gradients are summed in any order. Exit code 1 where an error exceeds
twice that of the equation in the type (float32: six times, since logits pass through exp2 and a stored log-sum-exp),
or bits differ that must not.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from nearsight.functional.attention import gated_positional_attention
from nearsight.functional.local import local_attention, query_key_value
from nearsight.kernels import gated_positional_attention as gated_kernels
from nearsight.kernels import local_attention as local_kernels
from nearsight.kernels.gpsa.joint import LONGEST_ROW
from nearsight.kernels.gpsa.layout import heads_outside

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# batch, height, width, heads, head_dim, kernel_size, border, type, content, positions, sets of embeddings, scale
CASES = [
    (3, 13, 17, 8, 8, 7, "mask", BF16, True, True, 1, 1),
    (1, 13, 17, 8, 8, 7, "zeros", FP32, True, True, 1, 1),
    (2, 13, 29, 8, 16, 7, "mask", BF16, True, True, 1, 1),
    (2, 13, 29, 8, 16, 7, "zeros", FP16, True, True, 8, 1),
    (2, 28, 28, 8, 16, 7, "mask", BF16, True, True, 1, 8),
    (1, 31, 37, 2, 16, 5, "mask", BF16, True, True, 1, 1),
    (1, 17, 23, 4, 16, 11, "mask", BF16, True, True, 1, 1),
    (1, 12, 20, 2, 16, 15, "zeros", BF16, True, True, 1, 1),
    (1, 12, 20, 2, 16, 8, "mask", BF16, True, True, 1, 1),
    (1, 19, 11, 5, 16, 7, "mask", BF16, False, True, 1, 1),
    (1, 19, 11, 5, 16, 4, "mask", FP16, True, False, 1, 1),
    (1, 5, 3, 8, 16, 7, "mask", BF16, True, True, 1, 1),
    (2, 11, 19, 3, 24, 3, "zeros", BF16, True, True, 3, 1),
    (3, 7, 11, 8, 32, 7, "mask", BF16, True, True, 1, 1),
    (5, 6, 6, 8, 32, 7, "mask", BF16, True, True, 1, 8),
    (1, 17, 23, 4, 32, 9, "zeros", FP16, True, True, 1, 1),
    (2, 9, 13, 2, 48, 7, "mask", BF16, True, True, 1, 1),
    (2, 7, 7, 8, 64, 7, "mask", BF16, True, True, 1, 1),
    (9, 3, 3, 8, 64, 7, "mask", BF16, True, True, 1, 4),
    (2, 23, 5, 4, 64, 13, "mask", BF16, True, True, 1, 1),
    (1, 13, 17, 2, 128, 5, "mask", BF16, True, True, 1, 1),
]
COMPILED_CASES = [CASES[index] for index in (0, 1, 3, 6, 9, 10, 12, 15, 18)]  # every path that a graph may take
# batch, grid, heads, head_dim, type; more than 256 positions are the backend `fused`
GATED_CASES = [
    (5, (14, 14), 4, 48, BF16),
    (3, (7, 11), 9, 24, BF16),
    (2, (13, 16), 2, 64, FP16),
    (2, (16, 16), 4, 64, BF16),
    (3, (8, 31), 2, 32, BF16),
    (3, (31, 5), 3, 8, FP16),
    (2, (17, 19), 3, 48, BF16),
]


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Floating-point memory comes filled with NaN."""

    def filled(make):
        def wrapped(*arguments, **options):
            made = make(*arguments, **options)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return wrapped

    with (
        mock.patch.object(torch, "empty", filled(torch.empty)),
        mock.patch.object(torch, "empty_like", filled(torch.empty_like)),
        mock.patch.object(Tensor, "new_empty", filled(Tensor.new_empty)),
    ):
        yield


def equation(projected: Tensor, *embeddings: Tensor, **options) -> Tensor:
    return local_attention(*query_key_value(projected), *embeddings, **options)


def error(ours: Tensor, exact: Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).item()


def measured(
    kernel: Callable[[], list[Tensor]], low: list[Tensor], exact: list[Tensor], names: list[str], *, poison: bool = True
) -> tuple[dict[str, float], set[str]]:
    """The kernel's errors over those of the equation in the type, by name; and where two runs gave different bits.

    Without `poison` for compiled kernels: torch.compile would trace the filling, and refuses what it then finds.
    """
    with poisoned_memory() if poison else contextlib.nullcontext():
        ours, again = kernel(), kernel()
    ratios = {n: error(a, c) / error(b, c) for n, a, b, c in zip(names, ours, low, exact, strict=True)}
    return ratios, {n for n, a, b in zip(names, ours, again, strict=True) if not torch.equal(a, b)}


def ready(kernel: Callable[..., Tensor], compiled: bool) -> Callable[..., Tensor]:
    return torch.compile(kernel, fullgraph=True) if compiled else kernel


def compare(case: tuple, compiled: bool, device: torch.device) -> tuple[dict[str, float], set[str]]:
    batch, height, width, heads, dim, size, border, dtype, content, positions, sets, scale = case
    projected = torch.randn(batch, height, width, 3 if content else 2, heads, dim, device=device).mul(scale).to(dtype)
    embeddings = [torch.randn(sets, size, dim // 2, device=device) * scale for _ in range(2 * positions)]
    gradient = torch.randn(batch, height, width, heads, dim, device=device).to(dtype)

    def run(function, dtype=None) -> list[Tensor]:
        inputs = [x if dtype is None else x.to(dtype) for x in (projected, *embeddings)]
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves, kernel_size=size, border=border)
        grad_projected, *grads = torch.autograd.grad(out, leaves, gradient.to(out.dtype))
        return [out, *grad_projected.unbind(3), *grads]

    names = ["output", "query", *["key"] * content, "value", *["row", "col"] * positions]
    kernel, low, exact = (
        ready(partial(local_kernels, backend="triton"), compiled),
        run(equation, dtype),
        run(equation, torch.float64),
    )
    return measured(lambda: run(kernel), low, exact, names, poison=not compiled)


def gated_equation(qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, **options) -> Tensor:
    query, key, value = heads_outside(qkv)
    return gated_positional_attention(query, key, value, v_pos, gate, **options)


def compare_gated(case: tuple, compiled: bool, device: torch.device) -> tuple[dict[str, float], set[str]]:
    batch, grid, heads, dim, dtype = case
    qkv = torch.randn(batch, grid[0] * grid[1], 3, heads, dim, device=device).to(dtype)
    parameters = [torch.randn(heads, 3, device=device) * 0.3, *(torch.randn(heads, device=device) for _ in range(2))]
    gradient = torch.randn(batch, heads, grid[0] * grid[1], dim, device=device).to(dtype)
    kernel = ready(gated_kernels, compiled)

    def run(function, dtype=None) -> list[Tensor]:
        inputs = [x if dtype is None else x.to(dtype) for x in (qkv, *parameters)]
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves, grid_size=grid)
        grad_qkv, grad_v_pos, _, grad_gate = torch.autograd.grad(out, leaves, gradient.to(out.dtype), allow_unused=True)
        return [out, *grad_qkv.unbind(2), grad_v_pos, grad_gate]

    names = ["output", "query", "key", "value", "v_pos", "gate"]
    low, exact = run(gated_equation, dtype), run(gated_equation, torch.float64)
    ratios, differing = measured(lambda: run(kernel), low, exact, names, poison=not compiled)
    return ratios, differing if qkv.shape[1] <= LONGEST_ROW else differing & {"output"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device; the tests run the same kernels by Triton's interpreter")
    torch.manual_seed(options.seed)
    device = torch.device("cuda")
    torch.compiler.config.recompile_limit = len(COMPILED_CASES)  # heads, windows and types are compiled for
    cases: list[tuple[tuple, Callable[[], tuple[dict[str, float], set[str]]]]] = []
    for name, compiled, comparison, some in (
        ("local eager", False, compare, CASES),
        ("local compiled", True, compare, COMPILED_CASES),
        ("GPSA eager", False, compare_gated, GATED_CASES),
        ("GPSA compiled", True, compare_gated, GATED_CASES),
    ):
        cases += [((name, *case), partial(comparison, case, compiled, device)) for case in some]
    wrong = 0
    for case, measure in cases:
        ratios, differing = measure()
        fine = not differing and all(ratio <= (6 if FP32 in case else 2) for ratio in ratios.values())  # NaN is not
        wrong += not fine
        shown = "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        words = (f"  BITS DIFFER: {', '.join(sorted(differing))}" if differing else "") + ("" if fine else "  <- wrong")
        print(*(str(one).removeprefix("torch.") for one in case), "|", shown + words, flush=True)
    print(f"{len(cases) - wrong} of {len(cases)} cases within bounds on {torch.cuda.get_device_name()}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
