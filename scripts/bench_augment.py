"""Images per second of batched augmentation: eager, compiled and (on a GPU) as a CUDA graph.

    python scripts/bench_augment.py --device cuda --size 32 --batch 1024

A CPU is measured on one thread, eager only (compiling takes minutes there; ask with --compile).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from nearsight.images.augmentation import Augment
from nearsight.images.batch_augment import BatchAugment
from nearsight.randomness import sample_keys


def images_per_second(step: Callable[[], object], batch: int, device: str, seconds: float = 3.0) -> float:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    clock = time.perf_counter if device == "cuda" else time.process_time  # others may be using the CPU too
    for _ in range(3):
        step()
    wait()
    count, start = 0, clock()
    while clock() - start < seconds:
        for _ in range(10):
            step()
        wait()
        count += 10 * batch
    return count / (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--compile", action="store_true", help="also on the CPU")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device, batch, size = chosen.device, chosen.batch, chosen.size
    name = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    print(f"measured on {name}, torch {torch.__version__}, batch {batch}, {size} px")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, generator=generator).to(device)
    keys = sample_keys(0, 0, torch.arange(batch)).to(device)
    settings = {
        "pad crop and flip": Augment(size=size, crop="pad"),
        "resized crop and flip": Augment(size=size),
        "pad crop, RandAugment 2, erasing": Augment(size=size, crop="pad", rand_num_ops=2, erase=0.25),
        "resized crop, RandAugment 2, erasing": Augment(size=size, rand_num_ops=2, erase=0.25),
    }
    for title, augment in settings.items():
        module = BatchAugment(augment).to(device)
        rates = {"eager": images_per_second(lambda module=module: module(images, keys), batch, device)}  # type: ignore[misc]
        if device == "cuda" or chosen.compile:
            mode = "reduce-overhead" if device == "cuda" else "default"
            compiled = torch.compile(module, fullgraph=True, mode=mode)
            rates["compiled"] = images_per_second(lambda compiled=compiled: compiled(images, keys), batch, device)  # type: ignore[misc]
        if device == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                module(images, keys)
            rates["eager in a CUDA graph"] = images_per_second(graph.replay, batch, device)
        print(f"{title:40s}" + "".join(f"  {how} {rate:,.0f}/s" for how, rate in rates.items()))


if __name__ == "__main__":
    main()
