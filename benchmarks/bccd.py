"""Convolution against attention in RetinaNet on real data, from scratch: BCCD's blood cells, same recipe, some seeds.

    PYTHONPATH=src python benchmarks/bccd.py FOLDER --out results/bccd.json

FOLDER holds BCCD as COCO json (train.json, val.json, test.json, images/). Every run is a process of its own that trains
through the package's engine on `train`, selects its checkpoint on `val` and measures it once on `test`. Some runs share
the device at a time (--parallel), so the seconds of a run say less than those of benchmarks/detection.py.
On one H200: about three minutes for 3 models × 3 seeds with --parallel 9. results/bccd.md has what came out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MODELS = (
    "retinanet_resnet26",
    "retinanet_sasa_resnet26_convstem_attention_heads",
    "retinanet_sasa_resnet26_convstem_attention",
)
REPORTED = ("mAP", "mAP50", "mAP75", "mAP_small", "mAP_medium", "mAP_large", "AR100")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="BCCD as a COCO folder")
    parser.add_argument("--out", type=Path, required=True, help="where the results go, as JSON")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=float, default=100.0)
    parser.add_argument("--eval-every", type=float, default=20.0, help="epochs between evaluations on val")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=320, help="of the training pictures")
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--channels", type=int, default=128, help="of pyramid and heads; the paper has 256")
    parser.add_argument("--head-depth", type=int, default=4)
    parser.add_argument("--width-multiplier", type=float, default=1.0, help="of the backbone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graphs", default="auto", choices=("auto", "on", "off"), help="capture steps in CUDA graphs")
    parser.add_argument("--parallel", type=int, default=3, help="runs at a time")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no further run starts")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_one(options: argparse.Namespace) -> dict[str, Any]:
    """One model, one seed, in this process."""
    import torch

    from nearsight.train.recipes import named_recipe
    from nearsight.train.runfolder import RunFolder
    from nearsight.train.runner import train

    model, seed = options.one[0], int(options.one[1])
    recipe = named_recipe("retinanet_small").with_changes(
        data=options.data,
        model=model,
        seed=seed,
        model_options={
            "channels": options.channels,
            "head_depth": options.head_depth,
            "smallest_anchor": 16,
            "width_multiplier": options.width_multiplier,
        },
        image_size=options.width,
        image_height=options.height,
        flip_vertical=0.5,  # a smear has no up
        epochs=options.epochs,
        warmup_epochs=min(5.0, options.epochs / 10),
        batch=options.batch,
        lr=options.lr,
        lr_batch=options.batch,
        eval_every=options.eval_every,
        device=options.device,
        graphs=options.graphs,
        compile="off",  # compiling takes longer than these runs
        channels_last=options.device != "cpu",
        report=False,
        resident="on",
    )
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        summary = train(recipe, run)
        records = run.metrics()
    speeds = [record["images_per_second"] for record in records if record["kind"] == "train"]
    cuda = torch.cuda.is_available() and options.device != "cpu"
    return {
        "model": model,
        "seed": seed,
        "parameters": summary["parameters"],
        "test": {name: summary["test"][name] for name in REPORTED},
        "val": [
            {name: record[name] for name in ("epoch", "val_mAP", "val_mAP50", "ema_val_mAP", "ema_val_mAP50")}
            for record in records
            if record["kind"] == "eval"
        ],
        "selected": summary["selected"],
        "skipped_steps": summary["skipped_steps"],
        "train_seconds": summary["seconds"],
        "wall_seconds": round(time.time() - started, 1),
        "images_per_second": statistics.median(speeds) if speeds else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "graphs": options.graphs,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
    }


def launch(options: argparse.Namespace, model: str, seed: int, graphs: str) -> tuple[dict[str, Any] | None, str]:
    """Run one (model, seed) in a process of its own; its result, or the end of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "one.json"
        passed = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in vars(options).items()
            if name not in ("data", "out", "models", "seeds", "one", "graphs", "parallel", "limit")
        ]
        command = [sys.executable, __file__, options.data, f"--out={out}", f"--graphs={graphs}", *passed]
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
        finished = subprocess.run(
            [*command, "--one", model, str(seed)], env={**os.environ, **threads}, capture_output=True, text=True
        )
        if finished.returncode == 0:
            return json.loads(out.read_text()), ""
        return None, (finished.stderr or finished.stdout)[-1500:]


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds."""
    table: dict[str, Any] = {}
    for model in dict.fromkeys(run["model"] for run in runs):
        mine = [run for run in runs if run["model"] == model]
        table[model] = {"n": len(mine), "parameters": mine[0]["parameters"]}
        for name in REPORTED:
            values = [run["test"][name] for run in mine]
            spread = statistics.stdev(values) if len(values) > 1 else None
            table[model][name] = {"mean": statistics.mean(values), "sd": spread}
    return table


def main() -> None:
    options = arguments()
    if options.one:
        options.out.write_text(json.dumps(run_one(options)))
        return
    started = time.time()
    runs: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []

    def work(job: tuple[str, int]) -> None:
        if time.time() - started > options.limit:
            failures.append({"model": job[0], "seed": job[1], "error": "not started: out of time"})
            return
        result, said = launch(options, *job, options.graphs)
        if result is None and options.graphs != "off":
            failures.append({"model": job[0], "seed": job[1], "graphs": options.graphs, "error": said})
            result, said = launch(options, *job, "off")
        if result is None:
            failures.append({"model": job[0], "seed": job[1], "graphs": "off", "error": said})
        else:
            runs.append(result)
            print(f"{job[0]} seed {job[1]}: {result['test']} in {result['wall_seconds']} s", flush=True)
        content = {
            "what": "BCCD test split, measured",
            "settings": {name: str(value) for name, value in vars(options).items() if name != "one"},
            "total_seconds": round(time.time() - started, 1),
            "summary": summarise(runs),
            "runs": runs,
            "failures": failures,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n")

    jobs = [(model, seed) for seed in options.seeds for model in options.models]
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(work, jobs))
    for model, values in summarise(runs).items():
        shown = ", ".join(
            f"{name} {values[name]['mean']:.3f} ± {values[name]['sd'] or 0:.3f}" for name in ("mAP", "mAP50")
        )
        print(f"{model} (n = {values['n']}): {shown}")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    sys.exit(0 if len(runs) == len(jobs) else 1)


if __name__ == "__main__":
    main()
