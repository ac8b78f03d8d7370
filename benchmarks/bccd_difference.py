"""How sure a difference between detectors is: the pictures of a test split and the seeds drawn again, many times.

    PYTHONPATH=src python benchmarks/bccd_difference.py FOLDER DETECTIONS --out results/bccd_difference.json

FOLDER holds BCCD as COCO json; DETECTIONS is what `benchmarks/bccd.py --detections` kept, MODEL_SEED.json for each run:
every file there counts as a seed. A draw takes as many pictures as there are, with replacement, and as many seeds of
each model; all models see the same pictures. Of few seeds such draws understate the spread (of three by a fifth), and
where backbones were pretrained once, that chance is not in it. Printed: each model's mAP less the first's, with the
standard deviation over draws and the middle 95 %.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from nearsight.detection.coco_metrics import CocoEvaluator, Found, Truth

Pictures = dict[int, list[dict[str, Any]]]


def by_picture(entries: list[dict[str, Any]]) -> Pictures:
    grouped: Pictures = defaultdict(list)
    for entry in entries:
        grouped[entry["image_id"]].append(entry)
    return grouped


def mean_precision(found: list[Found], truth: list[Truth], num_classes: int) -> float:
    """mAP of some pictures; the same one may come more than once."""
    evaluator = CocoEvaluator(num_classes)
    for place, (one, true) in enumerate(zip(found, truth, strict=True)):
        evaluator.add(place, one, true)
    return float(np.nanmean(evaluator.per_class()[:, 0]))


def read(folder: Path, detections: Path) -> tuple[list[Truth], dict[str, list[list[Found]]], int]:
    """What is in each picture; and what each seed of each model found in it."""
    coco = json.loads((folder / "test.json").read_text())
    label = {category["id"]: place for place, category in enumerate(coco["categories"])}
    order = [image["id"] for image in coco["images"]]
    true = by_picture(coco["annotations"])
    truth = [
        Truth(
            np.array([box["bbox"] for box in true[one]]).reshape(-1, 4),
            np.array([label[box["category_id"]] for box in true[one]]),
            np.array([box.get("iscrowd", 0) for box in true[one]]),
            np.array([box["area"] for box in true[one]]),
        )
        for one in order
    ]
    found: dict[str, list[list[Found]]] = defaultdict(list)
    for file in sorted(detections.glob("*.json")):
        boxes = by_picture(json.loads(file.read_text()))
        found[file.stem.rpartition("_")[0]].append([
            Found(
                np.array([box["bbox"] for box in boxes[one]]).reshape(-1, 4),
                np.array([box["score"] for box in boxes[one]]),
                np.array([label[box["category_id"]] for box in boxes[one]]),
            )
            for one in order
        ])  # fmt: skip
    return truth, found, len(label)


def draws(truth: list[Truth], found: dict[str, list[list[Found]]], num_classes: int, count: int) -> dict[str, Any]:
    """The mAP of each model in each draw."""
    generator = np.random.default_rng(0)
    values: dict[str, list[float]] = {model: [] for model in found}
    for _ in range(count):
        pictures = generator.integers(len(truth), size=len(truth))
        true = [truth[picture] for picture in pictures]
        for model, seeds in found.items():
            drawn = generator.integers(len(seeds), size=len(seeds)).tolist()
            of_seed = {
                seed: mean_precision([seeds[seed][picture] for picture in pictures], true, num_classes)
                for seed in set(drawn)
            }
            values[model].append(float(np.mean([of_seed[seed] for seed in drawn])))
    return {model: np.array(of_draws) for model, of_draws in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("detections", type=Path)
    parser.add_argument("--first", default="retinanet_resnet26", help="the model that others are compared with")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    truth, found, num_classes = read(options.folder, options.detections)
    if options.first not in found:
        parser.error(f"{options.detections} has no run of {options.first}; it has {', '.join(found) or 'none'}")
    whole = {
        model: float(np.mean([mean_precision(seed, truth, num_classes) for seed in seeds]))
        for model, seeds in found.items()
    }
    drawn = draws(truth, found, num_classes, options.draws)
    results = {}
    for model, seeds in found.items():
        differences = drawn[model] - drawn[options.first]
        low, high = np.percentile(differences, (2.5, 97.5))
        less = whole[model] - whole[options.first]
        results[model] = {
            "seeds": len(seeds), "mAP": whole[model], "sd_over_draws": drawn[model].std(ddof=1),
            "difference": less, "sd_of_difference": differences.std(ddof=1), "low": low, "high": high,
        }  # fmt: skip
        print(f"{model} (n = {len(seeds)}): mAP {whole[model]:.4f} ± {drawn[model].std(ddof=1):.4f}", end="")
        beside = f", less {options.first} {less:+.4f} ± {differences.std(ddof=1):.4f} (95 %: {low:+.4f} to {high:+.4f})"
        print("" if model == options.first else beside)
    if options.out is not None:
        what = f"mAP on {len(truth)} test pictures, {options.draws} draws of pictures and seeds"
        options.out.write_text(json.dumps({"what": what, "models": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
