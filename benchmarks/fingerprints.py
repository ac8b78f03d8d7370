"""What it costs to read every byte of the data for its fingerprint, beside the shortest epoch there can be.

    python benchmarks/fingerprints.py results/benchmarks/fingerprints.json

JPEGs of 500×375 pixels in a folder of classes, read for the first time and then remembered, beside one pass of the data
loader over them without any model: decoded, cropped and augmented by two workers. Arrays of CIFAR's size, beside one
pass of the augmentation on the CPU. Training adds the model to that, so an epoch is longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearsight.bench.measure import environment
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.engine.task import ProcessContext

PICTURES, ROWS, TIMES = 1000, 50_000, 5


def seconds(work: Callable[[], object], times: int = TIMES) -> dict[str, float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return {"median": round(statistics.median(found), 4), "least": round(min(found), 4), "most": round(max(found), 4)}


def write_pictures(root: Path) -> int:
    """Photographs of noise over colours, of the size on the disk that ImageNet's have; their bytes."""
    generator = np.random.default_rng(0)
    total = 0
    for number in range(PICTURES):
        file = root / str(number % 10) / f"{number:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(generator.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        noise = generator.integers(-22, 23, (375, 500, 3))
        pixels = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) + noise
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=92)
        total += file.stat().st_size
    return total


def one_epoch(task: ClassificationTask) -> Callable[[], None]:
    """All batches of an epoch, augmented, without a model."""

    def work() -> None:
        feed = task.feed(0, ProcessContext(torch.device("cpu"), micro_batch=task.recipe.batch))
        for step in range(task.steps_per_epoch):
            for inputs in next(feed):
                task.prepare(inputs, torch.tensor(step), 0)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NEARSIGHT_DATA"] = str(Path(folder) / "cache")
        root = Path(folder) / "pictures"
        size = write_pictures(root)
        time.sleep(2.5)  # younger files are not remembered
        common = {"val_fraction": 0.1, "batch": 100, "epochs": 1.0, "warmup_epochs": 0.0, "model": "convit_nano_32"}
        files = ClassificationTask(ClassificationRecipe(data=str(root), resident="off", workers=2, **common))

        def forgotten() -> None:
            for kept in (Path(folder) / "cache" / "checksums").glob("*"):
                kept.unlink()
            files.fingerprint()

        record = {
            "environment": environment(torch.device("cpu")),
            "processors": os.cpu_count(),
            "times": TIMES,
            "folder": {
                "pictures": PICTURES,
                "bytes": size,
                "fingerprint_seconds": seconds(forgotten),
                "remembered_seconds": seconds(files.fingerprint),
                "loader_epoch_seconds": seconds(one_epoch(files), 3),
            },
        }
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8)
        np.savez(Path(folder) / "a.npz", images=pixels, labels=np.arange(ROWS) % 10)
        arrays = ClassificationTask(ClassificationRecipe(data=str(Path(folder) / "a.npz"), image_size=32, **common))
        record["arrays"] = {
            "rows": ROWS,
            "bytes": pixels.nbytes,
            "fingerprint_seconds": seconds(arrays.fingerprint),
            "augmentation_epoch_seconds": seconds(one_epoch(arrays), 1),
        }
    for name in ("folder", "arrays"):
        part = record[name]
        epoch = next(part[key] for key in part if key.endswith("epoch_seconds"))
        part["share_of_epoch"] = round(part["fingerprint_seconds"]["median"] / epoch["median"], 4)
    given.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
