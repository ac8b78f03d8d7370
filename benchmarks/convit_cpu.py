"""ConViT-Ti on a CPU beside timm's and a plain ViT of its width, in turns, so that a noisy machine is unfair to none.

    PYTHONPATH=src python benchmarks/convit_cpu.py --rounds 30 --out results/benchmarks/convit_cpu.json

Each round runs every model once; the ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from nearsight.cli.bench_measure import environment
from nearsight.cli.bench_models import entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="convit_tiny")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    models = {entry.name: entry.build().eval() for entry in entries() if entry.group == options.group}
    images = torch.randn(options.batch, 3, 224, 224)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for _ in range(options.rounds + 2):  # the first two warm up
            for name, model in models.items():
                started = time.perf_counter()
                model(images)
                seconds[name].append(time.perf_counter() - started)
    seconds = {name: values[2:] for name, values in seconds.items()}
    record: dict = {
        "what": f"{options.group}, inference, float32, batch {options.batch}, measured in turns",
        "environment": environment(torch.device("cpu")),
        "rounds": options.rounds,
        "images_per_second": {name: options.batch / statistics.median(values) for name, values in seconds.items()},
        "nearsight_over": {},
    }
    for name in models:
        if name != "nearsight":
            ratios = [theirs / ours for ours, theirs in zip(seconds["nearsight"], seconds[name], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            record["nearsight_over"][name] = {"median": middle, "quartiles": [low, high]}
            print(f"nearsight over {name}: {middle:.2f}× (quartiles {low:.2f} to {high:.2f})")
    print({name: round(value, 1) for name, value in record["images_per_second"].items()}, "images/s")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
