"""Small image folders for tests: coloured noise whose mean tells the class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make_folder(root: Path, per_class: int = 12, classes: tuple[str, ...] = ("amber", "blue", "coral"), size=(11, 14)):
    """root/train/CLASS/n.png and root/val/CLASS/n.png, 11×14 pixels."""
    generator = np.random.default_rng(3)
    for split, count in (("train", per_class), ("val", 4)):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 120, (*size, 3))
                pixels[..., label % 3] += 100
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03d}.png")
    return root


def image_recipe(folder: Path, /, **changes) -> dict:
    """A ConViT of a few thousand weights at 8 px, streamed, three epochs."""
    settings = {
        "data": str(folder),
        "model": "convit_nano_32",
        "image_size": 8,
        "patch_size": 4,
        "batch": 6,
        "epochs": 3.0,
        "warmup_epochs": 0.5,
        "model_options": {"width": 36, "depth": 2, "num_gated_blocks": 1},
        "repeats": 1,
        "mixup": 0.8,
        "cutmix": 1.0,
        "resident": "off",
        "workers": 0,
        "save_every": 4,
        "eval_every": 1.0,
        "drop_path": 0.1,
        "eval_crop": 1.0,
        "bad_images": 0.1,
    }
    return {**settings, **changes}
