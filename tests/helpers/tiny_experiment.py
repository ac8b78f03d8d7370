"""An experiment of two tiny ViTs on 48 made-up pictures: its file, its data, and its results in a few seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

EXPERIMENT = """
question: Is it small?
source: no paper
settings: {image_size: 8, batch: 8, lr_batch: 0, mixup: 0.0, cutmix: 0.0, ema: 0.0, log_every: 1, save_every: 10}
rows:
  deit: {title: plain, settings: {model: deit_nano_32, patch_size: 4, model_options: {width: 9, depth: 3}}}
  convit: {title: gated, settings: {model: convit_nano_32, patch_size: 4, model_options: {width: 9, depth: 3}}}
scales:
  smoke: {data: DATA, samples: 160, evaluations: 4, seeds: [0, 1], fractions: [0.5, 1.0]}
"""


def write_pictures(path: Path) -> Path:
    """Two classes, bright above or below: 32 to train on, 8 for val and 8 for test."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 32), ("val", 8), ("test", 8)):
        labels = np.arange(count) % 2
        images = rng.integers(0, 128, (count, 8, 8, 3))
        images[labels == 0, :4] += 64
        images[labels == 1, 4:] += 64
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images.astype(np.uint8), labels
    np.savez(path, **arrays)
    return path


def write_experiment(folder: Path, text: str = EXPERIMENT) -> Path:
    """`tiny.yaml` and the pictures it names."""
    data = write_pictures(folder / "pictures.npz")
    path = folder / "tiny.yaml"
    path.write_text(text.replace("DATA", str(data)))
    return path
