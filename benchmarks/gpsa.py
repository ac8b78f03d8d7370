"""GPSA's GPU backends beside the attention of a plain ViT, at ConViT-Ti, S and B's shapes: device time and exactness.

    PYTHONPATH=src python benchmarks/gpsa.py --out gpsa.json

14×14 tokens, 48 channels of a head, bfloat16; times by CUDA-graph replay over three input sets, medians. Errors are
relative to the equation in float64 on two images, as a multiple of the error the same equation has in bfloat16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from nearsight.bench.measure import device_ms, environment
from nearsight.functional.attention import gated_positional_attention as equation
from nearsight.kernels import gated_positional_attention

GRID, HEAD_DIM = (14, 14), 48
MODELS = {"Ti": 4, "S": 9, "B": 16}  # heads
NAMES = ("output", "qkv", "v_pos", "gate")


def inputs(heads: int, batch: int, device: torch.device) -> list[Tensor]:
    """qkv, v_pos, pos_bias, gate, and the gradient of the output."""
    tokens = GRID[0] * GRID[1]
    qkv = torch.randn(batch, tokens, 3, heads, HEAD_DIM, device=device, dtype=torch.bfloat16)
    parameters = [torch.randn(heads, 3) * 0.3, torch.zeros(heads), torch.randn(heads)]
    gradient = torch.randn(batch, tokens, heads, HEAD_DIM, device=device, dtype=torch.bfloat16).transpose(1, 2)
    return [qkv, *(x.to(device) for x in parameters), gradient]


def times(forward: Callable[..., Tensor], sets: list[list[Tensor]], device: torch.device) -> list[float]:
    """Milliseconds forward, and forward and backward; the last tensor of a set is the gradient."""

    def both(one: list[Tensor]) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in one[:-1]]
        return torch.autograd.grad(forward(*leaves), leaves, one[-1])

    def only(one: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return forward(*one[:-1])

    return [round(device_ms(step, sets, device), 4) for step in (only, both)]


def plain(qkv: Tensor) -> Tensor:
    """What a ViT does: its gradient comes in three parts, which autograd has to put together."""
    return F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0))


def errors(backend: str, one: list[Tensor]) -> dict[str, float]:
    def run(function: Callable[..., Tensor], dtype: torch.dtype | None) -> list[Tensor]:
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (one[0], one[1], one[3])]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, one[-1].to(out.dtype))]

    def ours(qkv: Tensor, v_pos: Tensor, gate: Tensor) -> Tensor:
        return gated_positional_attention(qkv, v_pos, one[2], gate, grid_size=GRID, backend=backend)

    def literal(qkv: Tensor, v_pos: Tensor, gate: Tensor) -> Tensor:
        return equation(*qkv.permute(2, 0, 3, 1, 4), v_pos, gate, grid_size=GRID)

    exact, low, mine = run(literal, torch.float64), run(literal, torch.bfloat16), run(ours, None)

    def error(tensor: Tensor, wanted: Tensor) -> float:
        return ((tensor.double() - wanted).norm() / wanted.norm()).item()

    return {n: round(error(a, c) / error(b, c), 3) for n, a, b, c in zip(NAMES, mine, low, exact, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--backends", nargs="+", default=["joint", "fused"])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    record: dict = {"environment": environment(device), "batch": options.batch, "milliseconds": {}, "errors": {}}
    for name, heads in MODELS.items():
        sets = [inputs(heads, options.batch, device) for _ in range(3)]
        row = {"plain attention": times(plain, [[one[0], one[-1]] for one in sets], device)}
        for backend in options.backends:

            def attend(qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, backend: str = backend) -> Tensor:
                return gated_positional_attention(qkv, v_pos, pos_bias, gate, grid_size=GRID, backend=backend)

            row[backend] = times(attend, sets, device)
            record["errors"][f"{name} {backend}"] = errors(backend, inputs(heads, 2, device))
        record["milliseconds"][name] = row
        print(name, row, {k: v for k, v in record["errors"].items() if k.startswith(f"{name} ")}, flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
