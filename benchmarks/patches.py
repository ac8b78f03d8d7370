"""The patch projection of a ViT as the convolution that it is elsewhere, and accelerated, as one product.

    PYTHONPATH=src python benchmarks/patches.py --out results/benchmarks/patches_h200.json

224 pixels, patches of 16, widths of ConViT-Ti, S and B; forward, and forward with the gradients of the parameters
(images need none). The convolution as cuDNN chooses its algorithm and as `cudnn.benchmark` finds the best; CUDA-graph
replay over two input sets, medians. Images and weights in PyTorch's own order (channels first), bfloat16 autocast on a
GPU, float32 on a CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nearsight.acceleration import accelerate
from nearsight.bench.measure import device_ms, environment
from nearsight.models.embed import PatchEmbed

WIDTHS = {"Ti": 192, "S": 432, "B": 768}


def convolution(embed: PatchEmbed) -> Callable[[Tensor], Tensor]:
    return lambda images: embed.proj(images).flatten(2).transpose(1, 2).contiguous()


def times(project: Callable[[Tensor], Tensor], embed: PatchEmbed, sets: list[Tensor]) -> list[float]:
    """Milliseconds forward, and forward and backward."""
    device = sets[0].device
    half = device.type == "cuda"

    def only(images: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            return project(images)

    def both(images: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            tokens = project(images)
        return torch.autograd.grad(tokens, tuple(embed.parameters()), change)

    change = torch.randn_like(only(sets[0]))
    return [round(device_ms(step, sets, device), 4) for step in (only, both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    sets = [torch.randn(options.batch, 3, 224, 224, device=device) for _ in range(2)]
    record: dict = {"environment": environment(device), "batch": options.batch, "milliseconds": {}}
    for name, width in WIDTHS.items():
        embed = accelerate(PatchEmbed(16, 3, width)).to(device)
        row = record["milliseconds"][name] = {}
        for searched in (False, True):
            torch.backends.cudnn.benchmark = searched
            kind = "convolution, searched" if searched else "convolution"
            row[kind] = times(convolution(embed), embed, sets)
            row[f"{kind}, compiled"] = times(torch.compile(convolution(embed)), embed, sets)
        row["product"] = times(embed, embed, sets)
        row["product, compiled"] = times(torch.compile(embed), embed, sets)
        print(name, row, flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
