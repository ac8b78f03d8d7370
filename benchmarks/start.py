"""Seconds until a fresh process has built its first model, or a verb has answered, beside `import torch` alone.

    PYTHONPATH=src python benchmarks/start.py --before ../earlier/src --out results/benchmarks/start.json

Every command runs in processes of its own. In each round all of them have a turn, one after another, with this source
and with the earlier one: what else the machine does is unfair to none. Medians are over rounds; files have been read
before, in a round that is not counted. `predict` is shown one picture by a run that the benchmark trains first.
`--only create_model predict` measures a part, beside `import torch`; runs are added to the file.
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
from datetime import date
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearsight.bench.measure import environment

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("convit_tiny", "sasa_resnet26", "resnet26", "retinanet_resnet50")
REFERENCE = "import torch"
VERB = [sys.executable, "-m", "nearsight"]
TRAINED = "train pictures --model convit_nano_32 --epochs 1 --batch 4 --device cpu --show quiet --run run"


def commands() -> dict[str, list[str]]:
    """What is timed, by name; `import torch` first, which the others are compared with."""
    build = {
        f"create_model({name!r})": [sys.executable, "-c", f"import torch, nearsight; nearsight.create_model({name!r})"]
        for name in MODELS
    }
    asked = {f"nearsight {words}": [*VERB, *words.split()] for words in ("--help", "train --help", "models")}
    predict = {"nearsight predict": [*VERB, "predict", "run", "pictures/a/0.png", "--device", "cpu"]}
    return {REFERENCE: [sys.executable, "-c", "import torch"], **build, **asked, **predict}


def prepare(folder: Path) -> None:
    """A few pictures of noise in two classes, and a run that is trained on them."""
    generator = np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(8):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / label / f"{number}.png")
    subprocess.run([*VERB, *TRAINED.split()], cwd=folder, check=True, capture_output=True)


def seconds(command: list[str], source: Path, folder: Path) -> float:
    where = {**os.environ, "PYTHONPATH": str(source)}
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, env=where, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="the src folder of an earlier version")
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of what is measured")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = {
        name: command
        for name, command in commands().items()
        if name == REFERENCE or any(word in name for word in options.only)
    }
    sources = {"now": ROOT / "src"} | ({} if options.before is None else {"before": options.before.resolve()})
    spent: dict[str, dict[str, list[float]]] = {name: {version: [] for version in sources} for name in chosen}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for turn in range(1 + options.rounds):
            for name, command in chosen.items():
                for version, source in sources.items():
                    one = seconds(command, source, folder)
                    if turn:
                        spent[name][version].append(one)
    medians = {name: {version: statistics.median(own) for version, own in both.items()} for name, both in spent.items()}
    for name, both in medians.items():
        print(f"{name:38s}" + "".join(f"  {version} {value:.2f} s" for version, value in both.items()))
    if options.out is not None:
        record = {
            "what": f"seconds of a fresh process, median of {options.rounds} in turns",
            "measured": date.today().isoformat(),
            "command": " ".join(["python benchmarks/start.py --before EARLIER/src --only", *options.only]),
            "environment": environment(torch.device("cpu")),
            "seconds": {
                name: {version: round(value, 3) for version, value in both.items()} for name, both in medians.items()
            },
        }
        earlier = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
        options.out.write_text(json.dumps({"runs": [*earlier, record]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
