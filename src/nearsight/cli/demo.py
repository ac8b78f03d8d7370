"""``nearsight demo``: a few minutes on two CPU cores, on data that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def demo(
    *,
    task: Literal["classification", "detection"] = "classification",
    out: Path | None = None,
    seed: int = 0,
    epochs: float | None = None,
    device: str = "cpu",
) -> int:
    """Train a small ConViT, a plain ViT and a CNN on the bundled photographs of clothing, and compare them.

    The figures are of one seed. With --task detection: train a small detector on the bundled blood cells, measure it
    and draw what it finds.

    Parameters
    ----------
    task
        Which of the two.
    out
        Folder for the runs and what is made of them; by default runs/demo, for detection a new one under runs/.
    seed
        Seed of the runs.
    epochs
        Epochs of each run, by default 20 (the CNN, which is faster, has twice as many), for detection 40; fewer are
        quicker and say less.
    device
        cpu, cuda or mps.
    """
    if task == "detection":
        from nearsight.cli.demo_detection import DETECTOR_EPOCHS, demo_detection

        return demo_detection(out, seed, DETECTOR_EPOCHS if epochs is None else epochs, device)
    from nearsight.cli.demo_classification import EPOCHS, demo_classification

    return demo_classification(out or Path("runs/demo"), seed, EPOCHS if epochs is None else epochs, device)
