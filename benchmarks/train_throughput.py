"""Training throughput: the whole pipeline (gather, augment, mix, forward, backward, optimiser) against one fixed batch.

    python benchmarks/train_throughput.py --model convit_tiny_32 --batch 1024 --out results/train_throughput.json

Images are noise of CIFAR's shape unless --data names a source; their content does not change the work.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from nearsight.bench.measure import synchronize
from nearsight.classification.task import ClassificationTask
from nearsight.engine.device import pick_device, prepare_torch
from nearsight.engine.distributed import World
from nearsight.engine.optimizer import ema_weight
from nearsight.engine.task import Batch
from nearsight.engine.trainer import Trainer
from nearsight.recipes.files import resolve_recipe
from nearsight.recipes.recipe import Recipe
from nearsight.runs.exits import StopRequest
from nearsight.runs.folder import RunFolder
from nearsight.runs.identity import describe_environment


class FixedBatchTask(ClassificationTask):
    """The same task without its data: every step gets the batch that the first one prepared."""

    fixed: Batch | None = None

    def hold(self, inputs: dict, device: torch.device) -> None:
        with torch.no_grad():
            self.fixed = ClassificationTask.prepare(self, inputs, torch.zeros((), dtype=torch.int64, device=device), 0)

    def prepare(self, inputs, step, first):
        return self.fixed


def noise_source(folder: Path, count: int, size: int, num_classes: int) -> str:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    labels = np.arange(count) % num_classes
    path = folder / "noise.npz"
    np.savez(path, train_images=images, train_labels=labels, val_images=images[:512], val_labels=labels[:512])
    return str(path)


def make_recipe(arguments: argparse.Namespace, data: str) -> Recipe:
    flags = {
        "data": data,
        "model": arguments.model,
        "image_size": arguments.image_size,
        "batch": arguments.batch,
        "device": arguments.device,
        "compile": arguments.compile,
        "graphs": arguments.graphs,
        "precision": arguments.precision,
        "log_every": 50,
        "crop": "pad",
        "randaugment_ops": 2,
        "mix_probability": 1.0,
        "report": False,
    }
    if arguments.patch_size:
        flags["patch_size"] = arguments.patch_size
    return resolve_recipe("small", None, flags)


def measure(task: ClassificationTask, recipe: Recipe, steps: int, folder: Path) -> dict[str, float]:
    """Images per second over ``steps`` steps, after the ones that compile and capture."""
    device = pick_device(recipe.device)
    trainer = Trainer(task, recipe, RunFolder(folder), world=World(), device=device, stop=StopRequest())
    trainer.state.module.train()
    feed = task.feed(0, trainer.context)
    if isinstance(task, FixedBatchTask):
        task.hold(next(feed)[0], device)
    step, began, waited, memory = 0, 0.0, 0.0, 0
    warm_up = 8 if device.type == "cuda" else 1
    for step in range(warm_up + steps):
        if step == warm_up:
            trainer.train_step.read()
            synchronize(device)
            began, waited = time.perf_counter(), 0.0
        asked = time.perf_counter()
        inputs = next(feed)
        waited += time.perf_counter() - asked
        trainer.train_step(step, inputs, 1e-4, ema_weight(step, recipe.ema), seed=step)
        if trainer.train_step.pending == recipe.log_every:
            trainer.train_step.read()
    synchronize(device)
    seconds = time.perf_counter() - began
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    return {
        "images_per_second": steps * recipe.batch / seconds,
        "milliseconds_per_step": 1000 * seconds / steps,
        "share_waiting_for_data": waited / seconds,
        "gibibytes": memory / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="convit_tiny_32")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=0)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--graphs", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--data", default="", help="a data source; noise by default")
    parser.add_argument("--out", type=Path, help="write JSON here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = arguments.data or noise_source(folder, arguments.images, arguments.image_size, arguments.classes)
        recipe = make_recipe(arguments, data)
        device = pick_device(recipe.device)
        prepare_torch(recipe, device)
        pipeline = measure(ClassificationTask(recipe), recipe, arguments.steps, folder)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            torch.compiler.reset()
        fixed = measure(FixedBatchTask(recipe), recipe, arguments.steps, folder)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    record = {
        "settings": settings,
        "pipeline": pipeline,
        "fixed_batch": fixed,
        "pipeline_over_fixed": pipeline["images_per_second"] / fixed["images_per_second"],
        "environment": describe_environment(device),
    }
    for name in ("pipeline", "fixed_batch"):
        shown = "  ".join(f"{key} {value:.4g}" for key, value in record[name].items())
        print(f"{name:12s} {shown}")
    print(f"pipeline / fixed batch: {record['pipeline_over_fixed']:.1%}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
