"""Prepared training images per second on a machine without a GPU, beside timm's loader with as many workers.

    PYTHONPATH=src python benchmarks/pictures_cpu.py --out results/benchmarks/pictures_cpu.json

Both read the same JPEG files with DeiT's recipe at 224 pixels: bicubic random crops, flips, RandAugment (two operations
of magnitude 9 ± 0.5, timm's at most 9: above, its posterize asks Pillow for no bits, which Pillow 13 refuses), erasing
with a chance of 0.25, and mixup or cutmix of whole batches in the main process. Nothing is trained: the main process
only takes batches and mixes them. An epoch of one has its turn, then of the other; the
first batches, for which workers start, are not counted. A ratio is the median over rounds of the ratio within a round.

The files are the pictures of SOURCE, about 500 × 375 pixels large: enlarged (bicubic), with normal noise of four levels
added so that there is detail to decode, at JPEG quality 90.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import Mixup, create_dataset, create_loader

from nearsight.bench.measure import environment
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.datasets.sources import open_data
from nearsight.engine.task import ProcessContext
from nearsight.text import printable

SIZES = ((500, 375), (375, 500), (500, 333), (480, 360))
NOISE, QUALITY = 4.0, 90
SIDE, BATCH = 224, 32
CPU = torch.device("cpu")


def write_pictures(source: str, folder: Path, count: int) -> int:
    """FOLDER/train/CLASS/n.jpg and one picture of each class under val; the mean size of a file in bytes."""
    images, generator, total = open_data(source).train, np.random.default_rng(0), 0
    order = generator.permutation(len(images))
    seen: set[str] = set()
    for number in range(count):
        index = int(order[number % len(order)])
        name = printable(images.classes[images.labels[index]])
        large = Image.fromarray(images.read(index)).resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC)
        pixels = np.asarray(large) + generator.normal(0, NOISE, (large.height, large.width, 3))
        for split in ("train",) if name in seen else ("train", "val"):
            place = folder / split / name / f"{number:05d}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place, quality=QUALITY)
        seen.add(name)
        total += place.stat().st_size
    return total // count


def ours(folder: Path, workers: int) -> Callable[[int], Iterator[Any]]:
    """Prepared batches of an epoch, from its number."""
    recipe = ClassificationRecipe(
        data=str(folder), model="deit_tiny", image_size=SIDE, batch=BATCH, workers=workers, resident="off", repeats=1
    )
    task = ClassificationTask(recipe)
    context = ProcessContext(CPU, micro_batch=BATCH)

    def epoch(number: int) -> Iterator[Any]:
        start = number * task.steps_per_epoch
        feed = islice(task.feed(start, context), task.steps_per_epoch)
        return (task.prepare(inputs, torch.tensor(start + step), 0) for step, (inputs,) in enumerate(feed))

    return epoch


def timms(folder: Path, workers: int, prefetcher: bool) -> Callable[[int], Iterator[Any]]:
    dataset = create_dataset("", root=str(folder), split="train", is_training=True)
    loader = create_loader(
        dataset, (3, SIDE, SIDE), BATCH, is_training=True, device=CPU, use_prefetcher=prefetcher, num_workers=workers,
        persistent_workers=False, interpolation="bicubic", auto_augment="rand-m9-mstd0.5-mmax9-inc1", re_prob=0.25,
        re_mode="pixel",
    )  # fmt: skip
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=len(dataset.reader.class_to_idx))
    return lambda number: (mix(*batch) for batch in loader)


def images_per_second(batches: Iterable[Any], workers: int) -> float:
    """Without the batches that were under way when the first one came."""
    first, count = 2 * workers + 1, 0
    started = time.perf_counter()
    for index, _ in enumerate(batches):
        if index < first:
            started = time.perf_counter()
        else:
            count += BATCH
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="clothing", help="small pictures that the files are made of")
    parser.add_argument("--count", type=int, default=1536)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {
        "what": f"images/s of prepared batches of {BATCH}, DeiT's recipe at {SIDE} px, in turns, medians",
        "measured": date.today().isoformat(),
        "command": f"PYTHONPATH=src python benchmarks/pictures_cpu.py --rounds {options.rounds}",
        "environment": environment(CPU),
        "rounds": options.rounds,
        "images_per_second": {},
        "nearsight_over_timm": {},
    }
    with tempfile.TemporaryDirectory() as name:
        size = write_pictures(options.source, Path(name), options.count)
        record["files"] = f"{options.count} JPEGs of {options.source}, about 500 × 375, {size // 1000} kB each"
        for workers in options.workers:
            ways = {
                "nearsight": ours(Path(name), workers),
                "timm": timms(Path(name), workers, prefetcher=False),
                "timm, prefetcher": timms(Path(name), workers, prefetcher=True),
            }
            speeds: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(options.rounds):
                for way, epoch in ways.items():
                    speeds[way].append(images_per_second(epoch(turn), workers))
            what = f"{workers} worker{'s' * (workers > 1)}"
            best = [max(others) for others in zip(speeds["timm"], speeds["timm, prefetcher"], strict=True)]
            ratio = statistics.median(mine / other for mine, other in zip(speeds["nearsight"], best, strict=True))
            record["images_per_second"][what] = {way: round(statistics.median(own), 1) for way, own in speeds.items()}
            record["nearsight_over_timm"][what] = round(ratio, 3)
            shown = ", ".join(f"{way} {statistics.median(own):.0f}" for way, own in speeds.items())
            print(f"{what}: {shown} images/s; nearsight over the faster of timm's: {ratio:.2f}×")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
