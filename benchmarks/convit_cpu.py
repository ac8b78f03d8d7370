"""ConViT-Ti on a CPU beside timm's and a plain ViT of its width, in turns, so that a noisy machine is unfair to none.

    PYTHONPATH=src python benchmarks/convit_cpu.py --rounds 30 --out results/benchmarks/convit_cpu.json

Every model as it is and compiled, each in a process of its own: in one they share an allocator, and timm's large maps
then cost what the others left behind. In each round all of them have a turn, one at a time: a batch that is not timed,
since the others have emptied the caches, and some that are, one after another, as images are processed. A ratio is the
median over rounds of the ratio within a round. What a process pays for fresh memory still differs from start to start:
measure more than once; runs are added to the file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from nearsight.bench.measure import environment
from nearsight.bench.models import entries

MODES = ("eager", "compiled")
WARM_UP = 2  # rounds
TIMED = 3  # batches of a turn


def answer(asked: Connection, group: str, name: str, mode: str, batch: int, num_threads: int) -> None:
    """A process of one model: for every message it has a turn, and sends the seconds of a batch back."""
    torch.set_num_threads(num_threads)
    model = next(entry for entry in entries() if (entry.group, entry.name) == (group, name)).build().eval()
    run = torch.compile(model) if mode == "compiled" else model
    images = torch.randn(batch, 3, 224, 224)
    with torch.inference_mode():
        while asked.recv():
            run(images)
            started = time.perf_counter()
            for _ in range(TIMED):
                run(images)
            asked.send((time.perf_counter() - started) / TIMED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="convit_tiny")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [entry.name for entry in entries() if entry.group == options.group]
    spawn = multiprocessing.get_context("spawn")
    askers: dict[tuple[str, str], Connection] = {}
    for name in names:
        for mode in options.modes:
            askers[name, mode], asked = spawn.Pipe()
            arguments = (asked, options.group, name, mode, options.batch, torch.get_num_threads())
            spawn.Process(target=answer, args=arguments, daemon=True).start()
            asked.close()  # so that a process that dies ends this one too, instead of keeping it waiting
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in askers}
    for _ in range(WARM_UP + options.rounds):
        for key, asker in askers.items():
            asker.send(True)
            seconds[key].append(asker.recv())
    for asker in askers.values():
        asker.send(False)
    seconds = {key: values[WARM_UP:] for key, values in seconds.items()}
    record: dict = {
        "what": f"{options.group}, inference, float32, batch {options.batch}, in turns, a process for each",
        "environment": environment(torch.device("cpu")),
        "rounds": options.rounds,
        "images_per_second": {},
        "nearsight_over": {},
    }
    for mode in options.modes:
        speeds = {name: options.batch / statistics.median(seconds[name, mode]) for name in names}
        record["images_per_second"][mode] = speeds
        print(f"{mode}: {', '.join(f'{name} {speed:.1f}' for name, speed in speeds.items())} images/s")
        record["nearsight_over"][mode] = {}
        for name in names:
            if name != "nearsight":
                pairs = zip(seconds["nearsight", mode], seconds[name, mode], strict=True)
                low, middle, high = statistics.quantiles([theirs / ours for ours, theirs in pairs], n=4)
                record["nearsight_over"][mode][name] = {"median": middle, "quartiles": [low, high]}
                print(f"{mode}: nearsight over {name}: {middle:.2f}× (quartiles {low:.2f} to {high:.2f})")
    if options.out is not None:
        earlier = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
        options.out.write_text(json.dumps({"runs": [*earlier, record]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
