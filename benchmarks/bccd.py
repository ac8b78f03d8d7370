"""Convolution against attention in RetinaNet on real data: BCCD's blood cells, same recipe, some seeds.

    PYTHONPATH=src python benchmarks/bccd.py FOLDER --out results/bccd_local.json
    PYTHONPATH=src python benchmarks/bccd.py FOLDER --out results/bccd_warm.json --pretrain photographs.npz:64

FOLDER holds BCCD as COCO json (train.json, val.json, test.json, images/). Every run is a process of its own that trains
through the package's engine on `train`, selects its checkpoint on `val` and measures it once on `test`. Some runs share
the device at a time (--parallel), so the seconds of a run say less than those of benchmarks/detection.py.
On one H200: about three minutes for 3 models × 3 seeds with --parallel 9. results/bccd.md has what came out.

All weights start at random, heads of attention in backbones near the query (--start). With --pretrain, which names
images with classes, each backbone first learns to classify them (SASA's does so on ImageNet), once, by the recipe
`small` at --pretrain-lr, and every detector on it starts from the weights that val selected there. Those runs stay
beside the results, in OUT_pretrained/BACKBONE. The next call goes on with one that was broken off, reuses one that is
finished, and refuses one of other settings.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS = (
    "retinanet_resnet26",
    "retinanet_sasa_resnet26_convstem_attention_heads",
    "retinanet_sasa_resnet26_convstem_attention",
)
REPORTED = ("mAP", "mAP50", "mAP75", "mAP_small", "mAP_medium", "mAP_large", "AR100")
# What a run in a process of its own does not get from the options of all runs.
NOT_PASSED = ("data", "out", "models", "seeds", "graphs", "parallel", "limit", "one", "init_from", "backbone")


def sized_source(text: str) -> str:
    data, _, size = text.rpartition(":")
    if not data or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not DATA:SIZE, such as photographs.npz:64")
    return text


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
    parser.add_argument("--start", default="local", choices=("random", "local"), help="of attention in backbones")
    parser.add_argument("--pretrain", type=sized_source, metavar="DATA:SIZE", help="what backbones classify first")
    parser.add_argument("--pretrain-epochs", type=float, default=40.0)
    parser.add_argument("--pretrain-batch", type=int, default=256)
    parser.add_argument("--pretrain-lr", type=float, default=1e-3, help="peak rate of that batch")
    parser.add_argument("--detections", type=Path, metavar="FOLDER", help="keep what runs find in test, COCO's way")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graphs", default="auto", choices=("auto", "on", "off"), help="capture steps in CUDA graphs")
    parser.add_argument("--parallel", type=int, default=3, help="runs at a time")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no further detector starts")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--init-from", default="", help=argparse.SUPPRESS)
    parser.add_argument("--backbone", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    return parser.parse_args()


def how_to_run(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that detectors and backbones share."""
    return {
        "device": options.device,
        "graphs": options.graphs,
        "compile": "off",  # compiling takes longer than these runs
        "channels_last": options.device != "cpu",
        "report": False,
        "resident": "on",
    }


def backbone_options(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Of a backbone, alone or named by a detector on it."""
    width = {"width_multiplier": options.width_multiplier}
    return {**width, "attention": {"start": options.start}} if "sasa" in name else width


def pretrain_one(options: argparse.Namespace) -> dict[str, Any]:
    """One backbone as a classifier, in this process; its folder has the weights."""
    from nearsight.engine.training import train
    from nearsight.recipes.files import named_recipe
    from nearsight.recipes.recipe import differences
    from nearsight.runs.folder import RunFolder

    backbone, folder = options.backbone
    data, _, size = options.pretrain.rpartition(":")
    small = named_recipe("small")
    recipe = small.with_changes(
        data=data,
        model=backbone,
        model_options=backbone_options(options, backbone),
        image_size=int(size),
        epochs=options.pretrain_epochs,
        warmup_epochs=min(5.0, options.pretrain_epochs / 10),
        batch=options.pretrain_batch,
        lr=options.pretrain_lr,
        lr_batch=options.pretrain_batch,
        eval_every=max(1.0, options.pretrain_epochs / 10),
        **how_to_run(options),
    )
    summary = train(recipe, RunFolder(folder))
    return {
        "run": folder,
        "recipe": "small",
        "changes": {name: new for name, (_, new) in differences(small, recipe).items()},
        "peak_lr": recipe.peak_lr,
        "val_top1": summary["selected"]["value"],
        "selected": summary["selected"],
        "parameters": summary["parameters"],  # with the classifier, which the detector leaves behind
        "skipped_steps": summary["skipped_steps"],
        "train_seconds": summary["seconds"],
    }


def keep_detections(run: Path, device: str, target: Path) -> None:
    """What a run's selected weights find in its test split, as COCO's results."""
    from nearsight.detection import KIND, EvalOptions

    KIND.evaluate(run, split="test", device=device, options=EvalOptions(results=str(target)))


def run_one(options: argparse.Namespace) -> dict[str, Any]:
    """One model, one seed, in this process."""
    import torch

    from nearsight.engine.training import train
    from nearsight.recipes.files import named_recipe
    from nearsight.runs.folder import RunFolder

    model, seed = options.one[0], int(options.one[1])
    recipe = named_recipe("retinanet_small").with_changes(
        data=options.data,
        model=model,
        seed=seed,
        model_options={
            "channels": options.channels,
            "head_depth": options.head_depth,
            "smallest_anchor": 16,
            **backbone_options(options, model),
        },
        weights=options.init_from,
        image_size=options.width,
        image_height=options.height,
        flip_vertical=0.5,  # a smear has no up
        epochs=options.epochs,
        warmup_epochs=min(5.0, options.epochs / 10),
        batch=options.batch,
        lr=options.lr,
        lr_batch=options.batch,
        eval_every=options.eval_every,
        **how_to_run(options),
    )
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        summary = train(recipe, run)
        records = run.metrics()
        if options.detections is not None:
            keep_detections(run.path, options.device, options.detections / f"{model}_{seed}.json")
    speeds = [record["images_per_second"] for record in records if record["kind"] == "train"]
    cuda = torch.cuda.is_available() and options.device != "cpu"
    return {
        "model": model,
        "seed": seed,
        "init_from": recipe.weights or None,
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


def launch(options: argparse.Namespace, graphs: str, job: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Do one job in a process of its own; its result, or the end of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "one.json"
        passed = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in vars(options).items()
            if name not in NOT_PASSED and value is not None
        ]
        command = [sys.executable, __file__, options.data, f"--out={out}", f"--graphs={graphs}", *passed, *job]
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
        finished = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
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


@dataclass
class Results:
    """What has come out so far; the file always has all of it."""

    options: argparse.Namespace
    started: float = field(default_factory=time.time)
    writing: threading.Lock = field(default_factory=threading.Lock)
    pretraining: dict[str, dict[str, Any]] = field(default_factory=dict)  # by backbone
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def attempt(self, who: dict[str, Any], job: list[str]) -> dict[str, Any] | None:
        """The result of a job; where it fails, of a second try without CUDA graphs. Failures are noted."""
        if time.time() - self.started > self.options.limit:
            self.failures.append({**who, "error": "not started: out of time"})
            return None
        for graphs in dict.fromkeys((self.options.graphs, "off")):
            result, said = launch(self.options, graphs, job)
            if result is not None:
                return result
            self.failures.append({**who, "graphs": graphs, "error": said})
        return None

    def write(self) -> None:
        with self.writing:  # jobs end in threads of their own
            self._write()

    def _write(self) -> None:
        hidden = ("one", "init_from", "backbone", "detections")
        content = {
            "what": "BCCD test split, measured",
            "settings": {name: str(value) for name, value in vars(self.options).items() if name not in hidden},
            "total_seconds": round(time.time() - self.started, 1),
            "pretraining": self.pretraining,
            "summary": summarise(self.runs),
            "runs": self.runs,
            "failures": self.failures,
        }
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(content, indent=1) + "\n")


def backbones_of(models: list[str]) -> dict[str, str]:
    """The classification model that each detector stands on."""
    from nearsight.models.registry import backbone_of

    found = {model: backbone_of(model) for model in models}
    unknown = [model for model, backbone in found.items() if backbone is None]
    if unknown:
        sys.exit(f"there is no detector {unknown[0]!r}")
    return {model: backbone for model, backbone in found.items() if backbone is not None}


def pretrain(results: Results, backbones: set[str]) -> None:
    """Every backbone once, some at a time."""
    out = results.options.out

    def work(backbone: str) -> None:
        folder = out.with_name(f"{out.stem}_pretrained") / backbone
        result = results.attempt({"backbone": backbone}, ["--backbone", backbone, str(folder)])
        if result is not None:
            results.pretraining[backbone] = result
            print(f"{backbone}: {result['val_top1']:.2f} % on val in {result['train_seconds']} s", flush=True)
        results.write()

    with ThreadPoolExecutor(results.options.parallel) as pool:
        list(pool.map(work, sorted(backbones)))


def train_detectors(results: Results, jobs: list[tuple[str, int]], backbones: dict[str, str]) -> None:
    """Every job, some at a time; where its detector's backbone is named, from the weights of that backbone's run."""

    def work(job: tuple[str, int]) -> None:
        model, seed = job
        who, command = {"model": model, "seed": seed}, ["--one", model, str(seed)]
        if model in backbones and backbones[model] not in results.pretraining:
            results.failures.append({**who, "error": f"not started: {backbones[model]} was not pretrained"})
            result = None
        else:
            if model in backbones:
                command += ["--init-from", results.pretraining[backbones[model]]["run"]]
            result = results.attempt(who, command)
        if result is not None:
            results.runs.append(result)
            print(f"{model} seed {seed}: {result['test']} in {result['wall_seconds']} s", flush=True)
        results.write()

    with ThreadPoolExecutor(results.options.parallel) as pool:
        list(pool.map(work, jobs))


def main() -> None:
    options = arguments()
    if options.one or options.backbone:
        options.out.write_text(json.dumps(run_one(options) if options.one else pretrain_one(options)))
        return
    results = Results(options)
    backbones = backbones_of(options.models) if options.pretrain else {}
    pretrain(results, set(backbones.values()))
    results.started = time.time()  # the limit is for the detectors
    jobs = [(model, seed) for seed in options.seeds for model in options.models]
    train_detectors(results, jobs, backbones)
    for model, values in summarise(results.runs).items():
        shown = ", ".join(
            f"{name} {values[name]['mean']:.3f} ± {values[name]['sd'] or 0:.3f}" for name in ("mAP", "mAP50")
        )
        print(f"{model} (n = {values['n']}): {shown}")
    for failure in results.failures:
        print(f"failed: {failure}", file=sys.stderr)
    sys.exit(0 if len(results.runs) == len(jobs) else 1)


if __name__ == "__main__":
    main()
