"""Whole models on a CPU, in turns within one process: attention over convolution, ConViT-Ti over timm's models.

    PYTHONPATH=src python benchmarks/cpu_models.py --only convit_tiny --out results/benchmarks/cpu_models.json

Eager, float32, inference and training (AdamW, fused). In each round every model has a turn: a step that is not timed,
since the others have emptied the caches, and one that is. A ratio is the median over rounds of the ratio within a
round. On a machine with other work, `--threads 1 --processor-time` counts the processor's own time instead of the
clock's. A comparison measured again replaces the one of the same processor and threads in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
from torch import nn

from nearsight.acceleration import accelerate
from nearsight.bench.measure import environment
from nearsight.bench.models import entries
from nearsight.models import create_model

WARM_UP = 2  # rounds


@dataclass(frozen=True)
class Comparison:
    """`first` over each of the others."""

    name: str
    first: str
    models: dict[str, Callable[[], nn.Module]]
    batch: int
    img_size: int = 224
    memory_format: torch.memory_format = torch.contiguous_format


def _fast(name: str, **options: float) -> nn.Module:
    return accelerate(create_model(name, **options))


def comparisons() -> list[Comparison]:
    listed = []
    for name, batch, img_size, width in (("resnet26", 8, 224, 1.0), ("resnet26_quarter", 64, 32, 0.25)):
        models = {model: partial(_fast, model, width_multiplier=width) for model in RESNETS}
        listed.append(Comparison(name, RESNETS[1], models, batch, img_size, torch.channels_last))
    convits = {entry.name: entry.build for entry in entries() if entry.group == "convit_tiny"}
    for batch in (1, 8, 16, 64):
        listed.append(Comparison(f"convit_tiny_batch_{batch}", "nearsight", convits, batch))
    return listed


RESNETS = ("resnet26", "sasa_resnet26_convstem")


def measure(comparison: Comparison, rounds: int, clock: Callable[[], float]) -> dict:
    torch.manual_seed(0)
    order, shape = comparison.memory_format, (comparison.batch, 3, comparison.img_size, comparison.img_size)
    images = torch.randn(shape).to(memory_format=order)
    labels = torch.randint(1000, (comparison.batch,))
    models = {name: build().to(memory_format=order) for name, build in comparison.models.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), fused=True) for name, model in models.items()}

    def inference(name: str) -> None:
        with torch.no_grad():
            models[name].eval()(images)

    def training(name: str) -> None:
        nn.functional.cross_entropy(models[name].train()(images), labels).backward()
        optimizers[name].step()
        optimizers[name].zero_grad()

    record: dict = {"batch": comparison.batch, "img_size": comparison.img_size, "rounds": rounds}
    for step in (inference, training):
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(WARM_UP + rounds):
            for name, values in seconds.items():
                step(name)
                started = clock()
                step(name)
                values.append(clock() - started)
        seconds = {name: values[WARM_UP:] for name, values in seconds.items()}
        speeds = {name: comparison.batch / statistics.median(values) for name, values in seconds.items()}
        ratios = {}
        for name, values in seconds.items():
            if name != comparison.first:
                ours, theirs = speeds[comparison.first], speeds[name]
                pairs = zip(seconds[comparison.first], values, strict=True)
                low, middle, high = statistics.quantiles([other / own for own, other in pairs], n=4)
                ratios[name] = {"median": middle, "quartiles": [low, high]}
                print(
                    f"{comparison.name}, {step.__name__}: {comparison.first} over {name}: {middle:.2f}× "
                    f"(quartiles {low:.2f} to {high:.2f}; {ours:.1f} and {theirs:.1f} images/s)",
                    flush=True,
                )
        record[step.__name__] = {"images_per_second": speeds, f"{comparison.first} over": ratios}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a comparison's name")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="on a machine with other work; one thread")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.processor_time and options.threads != 1:
        parser.error("--processor-time adds up the time of all threads: give --threads 1")
    clock = time.process_time if options.processor_time else time.perf_counter
    torch.set_num_threads(options.threads)
    records = json.loads(options.out.read_text()) if options.out is not None and options.out.exists() else {}
    for comparison in comparisons():
        if options.only in comparison.name:
            where = environment(torch.device("cpu"))
            of = ", processor time" if options.processor_time else ""
            records[f"{comparison.name}, {where['hardware']}{of}"] = {
                "date": datetime.now(timezone.utc).date().isoformat(),
                "environment": where,
                **measure(comparison, options.rounds, clock),
            }
            if options.out is not None:  # at once: a later comparison may take long
                options.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
