"""The networks of `convert_cifar.py` on the test set, read once: accuracy, also corrupted, and where heads went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from convert_cifar import ARMS, BASE, CORRUPTED, MORE, STAGES, chosen, correct, load, splits
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import adjust_contrast, gaussian_blur

from nearsight.bench.measure import environment
from nearsight.convert import converted_layers, to_convolution
from nearsight.images.transforms import BatchEval
from nearsight.intervals import Draws, Estimate, estimate

OUT = Path("results/convert_cifar.json")
SHOWN = ("base", "cnn", "exact", "loose", "scratch")


def noise(images: Tensor, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(len(images))  # the same for every network
    drawn = torch.randn(images.shape[1:], generator=generator) * 255 * spread
    return (images.float() + drawn).clamp(0, 255).to(torch.uint8)


def pixelate(images: Tensor, side: int) -> Tensor:
    small = F.interpolate(images.float(), size=(side, side), mode="area")
    return F.interpolate(small, size=images.shape[-2:], mode="nearest").to(torch.uint8)


CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "blur 0.7": lambda images: gaussian_blur(images, [5, 5], [0.7, 0.7]),
    "blur 1.2": lambda images: gaussian_blur(images, [7, 7], [1.2, 1.2]),
    "noise 0.05": lambda images: noise(images, 0.05),
    "noise 0.10": lambda images: noise(images, 0.10),
    "contrast 0.5": lambda images: adjust_contrast(images, 0.5),
    "contrast 0.25": lambda images: adjust_contrast(images, 0.25),
    "pixels 20": lambda images: pixelate(images, 20),
    "pixels 12": lambda images: pixelate(images, 12),
}
"""Blur by its σ in pixels, noise by its share of full scale, contrast by its factor, pixelation by the side left."""


def measure(data: np.lib.npyio.NpzFile, folder: Path, seeds: list[int]) -> None:
    if missing := [f"{arm}-{seed}" for seed in seeds for arm in ARMS if not (folder / f"{arm}-{seed}.pt").exists()]:
        raise SystemExit(f"not trained yet: {', '.join(missing)}")
    images = torch.from_numpy(data["test_images"]).permute(0, 3, 1, 2)
    labels = torch.from_numpy(data["test_labels"])
    by_class = labels.argsort(stable=True).view(100, -1)
    some = by_class[:, : CORRUPTED // 100].flatten()
    sets = {"clean": (torch.arange(len(images)), lambda batch: batch)}
    sets |= {name: (some, corrupt) for name, corrupt in CORRUPTIONS.items()}
    right: dict[str, dict[str, np.ndarray]] = {arm: {} for arm in SHOWN}
    for arm in SHOWN:
        models = [load(folder, arm, seed) for seed in seeds]
        for name, (part, corrupt) in sets.items():
            right[arm][name] = np.stack([correct(model, images[part], labels[part], corrupt) for model in models])
        right[arm]["corrupted"] = np.mean([right[arm][name] for name in CORRUPTIONS], axis=0)
        print(arm, {name: round(100 * values.mean(), 2) for name, values in right[arm].items()}, flush=True)
    record = {
        "network": "resnet26, width 0.25, no pool in the stem, 32 px",
        "stages": STAGES,
        "samples": {"base": BASE, "more": MORE},
        "seeds": seeds,
        "pictures": {"clean": len(images), "corrupted": len(some)},
        "environment": environment(torch.device("cpu")),
        "training": training(folder, seeds),
        "accuracy": {arm: {name: interval(right, name, arm) for name in (*sets, "corrupted")} for arm in SHOWN},
        "differences": {
            f"{arm} - {other}": {name: interval(right, name, arm, other) for name in ("clean", "corrupted")}
            for arm, other in (("exact", "cnn"), ("loose", "cnn"), ("scratch", "cnn"), ("loose", "exact"))
        },
        "heads": {
            arm: heads(folder, arm, seeds, splits(data)["val"][0][::25]) for arm in ("exact", "loose", "scratch")
        },
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {OUT}")


def interval(right: dict[str, dict[str, np.ndarray]], name: str, *arms: str) -> dict[str, float]:
    """Accuracy of an arm, or that of the first less that of the second, with its 95 % interval."""
    rows = [right[arm][name] for arm in arms]
    draws = Draws(rows[0].shape[1])
    found: Estimate = estimate(
        (lambda a: a) if len(arms) == 1 else (lambda a, b: a - b),
        [draws.accuracies(row) for row in rows],
        [100 * row.mean(axis=1) for row in rows],
    )
    return found.as_dict()


def training(folder: Path, seeds: list[int]) -> dict[str, list[dict[str, float]]]:
    records = {arm: [torch.load(folder / f"{arm}-{seed}.pt", weights_only=True) for seed in seeds] for arm in ARMS}
    kept = ("val_before", "val", "loss", "cpu_seconds")
    return {arm: [{name: round(run[name], 3) for name in kept} for run in runs] for arm, runs in records.items()}


@torch.no_grad()
def heads(folder: Path, arm: str, seeds: list[int], images: Tensor) -> list[dict]:
    """Of each layer, means over seeds and heads: gates, how far centres went, strengths, the convolution left."""
    shown, rows = BatchEval(32)(images), []
    for seed in seeds:
        model = load(folder, arm, seed).eval()
        readings = to_convolution(model, shown).report.layers
        for reading, layer in zip(readings, converted_layers(model).values(), strict=True):
            square, *linear = layer.v_pos.unbind(1)
            centers = torch.stack(linear, 1) / (-2 * square[:, None])
            rows.append(
                {
                    "layer": reading.name,
                    "gate_value": layer.gate_value.mean().item(),
                    "strength": -square.mean().item(),
                    "centre_moved": (centers - layer.axes.offsets()).norm(dim=1).mean().item(),
                    "position_in_kernel": float(np.mean(reading.position_in_kernel)),
                    "attention_in_kernel": float(np.mean(reading.attention_in_kernel or [])),
                    "explained": reading.explained,
                }
            )
    names = list(dict.fromkeys(row["layer"] for row in rows))
    return [
        {"layer": name}
        | {
            key: round(float(np.mean([row[key] for row in rows if row["layer"] == name])), 4)
            for key in rows[0]
            if key != "layer"
        }
        for name in names
    ]


def main() -> None:
    options = chosen(__doc__)
    measure(np.load(options.data), options.runs, options.seeds)


if __name__ == "__main__":
    main()
