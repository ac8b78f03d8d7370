"""ConViT-Ti on a CPU beside timm's and a plain ViT of its width, in turns, so that a noisy machine is unfair to none.

    PYTHONPATH=src python benchmarks/convit_cpu.py --rounds 30 --out results/benchmarks/convit_cpu.json

Every model as it is and compiled. Each round runs all of them once; a ratio is the median over rounds of the ratio
within a round.
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

MODES = ("eager", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="convit_tiny")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    models = {entry.name: entry.build().eval() for entry in entries() if entry.group == options.group}
    runs = {
        (name, mode): torch.compile(model) if mode == "compiled" else model
        for name, model in models.items()
        for mode in options.modes
    }
    images = torch.randn(options.batch, 3, 224, 224)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    with torch.inference_mode():
        for _ in range(options.rounds + 2):  # the first two warm up
            for key, run in runs.items():
                started = time.perf_counter()
                run(images)
                seconds[key].append(time.perf_counter() - started)
    seconds = {key: values[2:] for key, values in seconds.items()}
    record: dict = {
        "what": f"{options.group}, inference, float32, batch {options.batch}, measured in turns",
        "environment": environment(torch.device("cpu")),
        "rounds": options.rounds,
        "images_per_second": {},
        "nearsight_over": {},
    }
    for mode in options.modes:
        speeds = {name: options.batch / statistics.median(seconds[name, mode]) for name in models}
        record["images_per_second"][mode] = speeds
        print(f"{mode}: {', '.join(f'{name} {speed:.1f}' for name, speed in speeds.items())} images/s")
        record["nearsight_over"][mode] = {}
        for name in models:
            if name != "nearsight":
                pairs = zip(seconds["nearsight", mode], seconds[name, mode], strict=True)
                low, middle, high = statistics.quantiles([theirs / ours for ours, theirs in pairs], n=4)
                record["nearsight_over"][mode][name] = {"median": middle, "quartiles": [low, high]}
                print(f"{mode}: nearsight over {name}: {middle:.2f}× (quartiles {low:.2f} to {high:.2f})")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
