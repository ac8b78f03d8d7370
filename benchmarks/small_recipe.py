"""What each setting of the recipe `small` is worth: one change at a time, on validation images alone.

    PYTHONPATH=src python benchmarks/small_recipe.py clothing:64 cifar5k.npz:32 --out small_recipe.json

A set is anything that `nearsight train` takes, then a colon and the size of the images. Every run is a process of its
own; some share the device (--parallel). The value is the top-1 accuracy on val of the last averaged weights, so that no
checkpoint is chosen by what is compared; a test split, where there is one, is not reported.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "small": {},
    "lr 5e-4": {"lr": 5e-4},
    "lr 2e-3": {"lr": 2e-3},
    "batch 64": {"batch": 64},
    "batch 256": {"batch": 256},
    "weight decay 0.1": {"weight_decay": 0.1},
    "weight decay 0.2": {"weight_decay": 0.2},
    "drop path 0": {"drop_path": 0.0},
    "drop path 0.2": {"drop_path": 0.2},
    "crops from 0.2": {"crop_scale": 0.2},
    "crops from 0.6": {"crop_scale": 0.6},
    "shifted crops": {"crop": "pad"},
    "RandAugment of 1": {"randaugment_ops": 1},
    "RandAugment of 2": {"randaugment_ops": 2},
    "no erasing": {"erasing": 0.0},
    "no mixing": {"mixup": 0.0, "cutmix": 0.0},
    "cutmix only": {"mixup": 0.0},
    "mixing always": {"mix_probability": 1.0},
    "no smoothing": {"label_smoothing": 0.0},
    "no clipping": {"clip_grad": 0.0},
    "average 0.999": {"ema": 0.999},
    "locality 2": {"model_options": {"locality_strength": 2.0}},
    "convolutional stem": {"model_options": {"stem": "conv"}},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="DATA:SIZE")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, as JSON")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--model", default="convit_micro_{size}", help="{size} stands for the size of the images")
    parser.add_argument("--epochs", type=float, default=100.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--parallel", type=int, default=4, help="runs at a time")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which no further run starts")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def train_one(settings: dict[str, Any], stop_at: float) -> dict[str, float] | None:
    """The last values on val of one run, in a process of its own; None where there was no time for it."""
    if time.time() > stop_at:
        return None
    from nearsight.engine.training import train
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.folder import RunFolder

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        summary = train(resolve_recipe("small", flags=settings), run)
        last = [record for record in run.metrics() if record["kind"] == "eval"][-1]
    return {"top1": last["ema_val_top1"], "loss": last["ema_val_loss"], "seconds": summary["seconds"]}


def main() -> None:
    options = arguments()
    stop_at = time.time() + options.limit
    jobs: dict[tuple[str, str, int], dict[str, Any]] = {}
    for seed in options.seeds:  # every variant once before any twice
        for source in options.sets:
            data, _, size = source.rpartition(":")
            shared = {
                "data": data, "image_size": int(size), "model": options.model.format(size=size),
                "epochs": options.epochs, "warmup_epochs": min(5.0, options.epochs / 10),
                "eval_every": options.epochs, "select": "last",
                "seed": seed, "device": options.device, "compile": options.compile, "report": False,
            }  # fmt: skip
            for variant in options.variants:
                jobs[variant, source, seed] = {**shared, **VARIANTS[variant]}
    spawn = multiprocessing.get_context("spawn")
    results: list[dict[str, Any]] = []
    with spawn.Pool(options.parallel, maxtasksperchild=1) as pool:
        running = {key: pool.apply_async(train_one, (settings, stop_at)) for key, settings in jobs.items()}
        for (variant, source, seed), job in running.items():
            values = job.get()
            if values is not None:
                results.append({"variant": variant, "set": source, "seed": seed, **values})
                print(f"{source:24s} {variant:20s} seed {seed}: {values['top1']:.2f} %", flush=True)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    for source in options.sets:
        print(f"\n{source}")
        for variant in options.variants:
            found = [one["top1"] for one in results if (one["variant"], one["set"]) == (variant, source)]
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            if found:
                print(f"  {variant:20s} {statistics.fmean(found):.2f}{spread} %  (n = {len(found)})")


if __name__ == "__main__":
    main()
