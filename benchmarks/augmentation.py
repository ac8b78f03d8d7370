"""Images per second of batched augmentation: eager, compiled and (on a GPU) as a CUDA graph.

    PYTHONPATH=src python benchmarks/augmentation.py --device cuda --size 32 --batch 1024

A CPU is measured on one thread, eager only (compiling takes minutes there; ask with --compile).
"""

from __future__ import annotations

import argparse

import torch

from nearsight.bench.measure import device_ms, environment, median_ms
from nearsight.images.augmentation import Augment, BatchAugment
from nearsight.randomness import sample_keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--compile", action="store_true", help="also on the CPU")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device, batch, size = torch.device(options.device), options.batch, options.size
    where = environment(device)
    print(f"measured on {', '.join(f'{name} {value}' for name, value in where.items())}, batch {batch}, {size} px")
    generator = torch.Generator().manual_seed(0)
    sets = [
        (
            torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, generator=generator).to(device),
            sample_keys(0, epoch, torch.arange(batch)).to(device),
        )
        for epoch in range(3)
    ]
    settings = {
        "pad crop and flip": Augment(size=size, crop="pad"),
        "resized crop and flip": Augment(size=size),
        "pad crop, RandAugment 2, erasing": Augment(size=size, crop="pad", rand_num_ops=2, erase=0.25),
        "resized crop, RandAugment 2, erasing": Augment(size=size, rand_num_ops=2, erase=0.25),
    }
    for title, augment in settings.items():
        module = BatchAugment(augment).to(device)
        ways = {"eager": (module, median_ms)}
        if device.type == "cuda" or options.compile:
            mode = "reduce-overhead" if device.type == "cuda" else "default"
            ways["compiled"] = (torch.compile(module, fullgraph=True, mode=mode), median_ms)
        if device.type == "cuda":
            ways["eager in a CUDA graph"] = (module, device_ms)
        rates = {
            how: batch / timer(lambda one, step=step: step(*one), sets, device) * 1e3  # type: ignore[misc]
            for how, (step, timer) in ways.items()
        }
        print(f"{title:40s}" + "".join(f"  {how} {rate:,.0f}/s" for how, rate in rates.items()))


if __name__ == "__main__":
    main()
