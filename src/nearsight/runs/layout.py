"""What lies in a run folder: the name of every file, and what it holds. Imports nothing of nearsight.

The folder is the run: it can be moved, copied and handed on, and it holds data only, never commands.
"""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"
DATA = "data.json"
CLASSES = "classes.txt"
CATEGORIES = "categories.json"
TRAIN_IMAGES = "train_images.txt"
ENVIRONMENT = "env.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
CONVERSION = "conversion.json"
DONE = "done.json"
REPORT = "report.html"
LOCK = "run.lock"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb-id.txt"

DESCRIPTIONS = {
    CONFIG: "every setting",
    METRICS: "losses, evaluations, gates and nonlocality, line by line",
    CONVERSION: "what became of each convolution",
    DONE: "how the run ended",
    ENVIRONMENT: "versions and hardware",
    DATA: "fingerprints of the data, and how many files were not read",
    CLASSES: "names of the classes",
    CATEGORIES: "names and numbers of the classes",
    TRAIN_IMAGES: "the training images that were kept",
    CHECKPOINTS: "weights",
}
"""What a person may want to open, in this order; besides these there are the lock, trackers' files and the report."""

WHOLE_TRAIN = "whole_train"
"""In ``data.json`` beside the splits: images of the training set that `fraction` took a share of."""

NOT_READ = "not_read"
"""In ``data.json`` beside the splits: files of the data that are not read, how many for each reason."""

TEACHER = "teacher"
"""In ``data.json`` beside the splits: a checksum of the teacher's weights, where there is a teacher."""

# In a checkpoint, ``checkpoints/step-00001234/``, besides one ``.safetensors`` file for each group of tensors.
STATE = "state.json"
MANIFEST = "MANIFEST.json"
MODEL, AVERAGE, OPTIMIZER = "model", "ema", "optim"
"""The groups: weights, averaged weights, the optimiser's state."""
BEST, LAST = "best", "last"
"""Pointers beside the checkpoints: ``best.json``, ``last.json``."""


def skipped_step(step: int) -> str:
    """The record of an update that was skipped because its loss or gradient was not finite: with its samples."""
    return f"skipped-step-{step:08d}.json"


def is_run_folder(path: Path) -> bool:
    """Whether ``nearsight train`` has written here."""
    return (path / LOCK).is_file() or ((path / CONFIG).is_file() and (path / CHECKPOINTS).is_dir())
