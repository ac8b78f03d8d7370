"""``nearsight demo --task detection``: a small RetinaNet learns to find blood cells, about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Seconds on two CPU cores, measured: loading, evaluations and drawing together, and one epoch.
_START, _EPOCH, _NUM_DRAWN = 12.0, 1.3, 4
DETECTOR_EPOCHS = 40.0
DETECTOR: dict[str, Any] = {
    "model": "retinanet_resnet26",
    "model_options": {"channels": 48, "head_depth": 2, "smallest_anchor": 16, "width_multiplier": 0.25},
    "image_size": 256,
    "image_height": 192,
    "flip_vertical": 0.5,
    "batch": 6,
    "lr": 1.5e-3,
    "lr_batch": 6,
    "ema": 0.98,
    "channels_last": False,
}


def demo_detection(out: Path | None, seed: int, epochs: float, device: str) -> int:
    """Train, measure, and draw what is found in some test pictures."""
    from nearsight.cli.training import train_and_tell
    from nearsight.cli.using import predict_and_tell
    from nearsight.detection.sources import BUNDLED, open_detection
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.folder import free_run_path
    from nearsight.tasks import task_kind

    run = free_run_path(Path("runs"), "demo-detection") if out is None else out
    seconds = _START + _EPOCH * epochs
    rough = f"{seconds:.0f} seconds" if seconds < 50 else f"{max(1, round(seconds / 60))} min"
    print(
        f"a small RetinaNet learns to find blood cells in 36 pictures ({epochs:g} epochs), is measured on 12 others "
        f"and draws what it finds in {_NUM_DRAWN}: about {rough} on two CPU cores",
        flush=True,
    )
    changes = {
        "data": BUNDLED,
        **DETECTOR,
        "epochs": epochs,
        "warmup_epochs": 0.5 if epochs < 10 else 2.0,
        "eval_every": max(epochs / 4, 1.0),
        "seed": seed,
        "device": device,
    }
    train_and_tell(resolve_recipe("retinanet_small", None, changes), run)
    test = open_detection(BUNDLED).test
    assert test is not None
    pictures = [test.root / name for name in test.names[:_NUM_DRAWN]]
    return predict_and_tell(task_kind("detection"), run, pictures, {"out": str(run / "found")}, device=device)
