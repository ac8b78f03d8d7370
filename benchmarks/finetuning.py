"""A ConViT and a CNN on few pictures, from scratch and from weights that were trained on other pictures.

    PYTHONPATH=src python benchmarks/finetuning.py pretrain CONVIT TINY.npz    # 80 classes of Tiny-ImageNet; also CNN
    PYTHONPATH=src python benchmarks/finetuning.py train CONVIT 0              # one run; also CNN, seeds from 0 on
    PYTHONPATH=src python benchmarks/finetuning.py train CNN 0 --share 10 --scratch
    PYTHONPATH=src python benchmarks/finetuning.py evaluate --out results/finetuning.json

Pictures, parts and networks are those of benchmarks/clothing_split.py, and so are the rows from scratch that
results/clothing_split.json has; a CNN from scratch on a tenth of the pictures is trained here. TINY.npz has
`train_images`, `val_images` (uint8 [N, side, side, 3]), `train_labels`, `val_labels` and `classes`; what is 32 px wide
is for the ConViT, 40 px for the CNN.

The rule, written before the runs: `finetune` is taken as it is, but for the pictures' size and the lengths below; as
many batches as from scratch; seeds 0 to 2; weights selected on val; test is read once, by `evaluate`. Weights help
where the 95 % interval, over pictures and seeds, of tuned less scratch excludes 0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from clothing_split import Pictures, compact, correct_of_run, measures, settings

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "results" / "clothing_split.json"
BATCH = 64
SHARES = (100, 10)
STEPS = 820  # batches of 64, less where patience ends them
PRETRAINING: dict[str, dict[str, Any]] = {
    "convit": {"image_size": 32, "epochs": 3.0, "lr": 1e-3},
    "cnn": {"image_size": 40, "epochs": 5.0, "lr": 2e-3},
}
FINE: dict[str, Any] = {"image_size": 40, "eval_crop": 1.0, "device": "cpu", "report": False, "keep": 1}


def pretraining(row: str, data: Path) -> dict[str, Any]:
    own = {**settings(row, 0, BATCH), **PRETRAINING[row], "batch": 128, "data": str(data)}
    return {**own, "warmup_epochs": 0.4, "eval_every": 5.0, "norm_decay": 0.99}


def fine_tuning(row: str, seed: int, data: Path, weights: Path) -> dict[str, Any]:
    """The recipe `finetune` as it is, but for the pictures' size and lengths."""
    epochs = _epochs(data)
    part = {"warmup_epochs": 0.05 * epochs, "frozen_epochs": 0.05 * epochs, "eval_every": epochs / 20}
    return {
        **FINE,
        **part,
        "epochs": epochs,
        "patience": epochs / 4,
        "data": str(data),
        "weights": str(weights),
        "seed": seed,
    }


def from_scratch(row: str, seed: int, data: Path) -> dict[str, Any]:
    epochs = _epochs(data)
    length = {"epochs": epochs, "warmup_epochs": 0.05 * epochs, "eval_every": epochs / 5}
    return {**settings(row, seed, _num_train(data)), **length, "data": str(data)}


def _epochs(data: Path) -> float:
    return STEPS / (_num_train(data) // BATCH)


def _num_train(data: Path) -> int:
    with np.load(data) as arrays:
        return len(arrays["train_labels"])


def run_recipe(name: str, changes: dict[str, Any], folder: Path) -> None:
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.training import train
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder

    with reported():
        recipe = resolve_recipe(name, None, changes)
        train(recipe, RunFolder(folder), callbacks=lambda one: [make_progress(one.total_steps, style="plain")])


def file_of(folder: Path, share: int) -> Path:
    file = folder / f"clothing_{share}.npz"
    if not file.exists():
        Pictures().save(folder)
    return file


def run_name(row: str, seed: int, share: int, *, scratch: bool) -> str:
    return f"{row}-{'scratch' if scratch else 'tuned'}-{share}-s{seed}"


def evaluate(folder: Path, out: Path | None) -> None:
    """Read the test pictures: right or wrong for each, of every finished run, and what the rows differ by."""
    pictures, stored = Pictures(), json.loads(SCRATCH.read_text())["rows"]
    rows = {f"{name}, scratch": np.array(stored[name]["correct"]) for name in ("convit", "cnn", "convit 10 %")}
    for share in SHARES:
        for row in PRETRAINING:
            for scratch in (False, True):
                runs = [folder / run_name(row, seed, share, scratch=scratch) for seed in range(9)]
                done = [run for run in runs if (run / "done.json").exists()]
                if done:
                    name = f"{row}{'' if share == 100 else f' {share} %'}, {'scratch' if scratch else 'tuned'}"
                    rows[name] = np.stack([correct_of_run(run, pictures) for run in done])
    labels = pictures.labels[pictures.parts["test"]]
    results: dict[str, Any] = {"rows": {}, "differences": {}}
    for name, correct in sorted(rows.items()):
        results["rows"][name] = {**measures([(1, correct)], labels), "correct": correct.tolist()}
    for one, other in _pairs(rows):
        count = min(len(rows[one]), len(rows[other]))
        terms = [(1, rows[one][:count]), (-1, rows[other][:count])]
        results["differences"][f"{one} less {other}"] = measures(terms, labels)
    for name, found in [*results["rows"].items(), *results["differences"].items()]:
        words = [f"{what} {found[what]['mean']:.2f} {found[what]['interval of pictures and seeds']}"
                 for what in ("accuracy", "balanced accuracy")]  # fmt: skip
        print(f"{name} (n = {found['n']}): {', '.join(words)}")
    if out is not None:
        out.write_text(compact(results))


def _pairs(rows: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    wanted = []
    for share in ("", " 10 %"):
        wanted += [(f"{row}{share}, tuned", f"{row}{share}, scratch") for row in ("convit", "cnn")]
        wanted += [(f"convit{share}, {how}", f"cnn{share}, {how}") for how in ("tuned", "scratch")]
    return [pair for pair in wanted if all(name in rows for name in pair)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/finetuning"), help="for files and runs")
    verbs = parser.add_subparsers(dest="verb", required=True)
    before = verbs.add_parser("pretrain", help="train the weights to start from")
    before.add_argument("row", type=str.lower, choices=tuple(PRETRAINING))
    before.add_argument("data", type=Path)
    one = verbs.add_parser("train", help="train one row")
    one.add_argument("row", type=str.lower, choices=tuple(PRETRAINING))
    one.add_argument("seed", type=int)
    one.add_argument("--share", type=int, choices=SHARES, default=100, help="per cent of the training pictures")
    one.add_argument("--scratch", action="store_true", help="without the weights")
    measured = verbs.add_parser("evaluate", help="measure the runs that are finished")
    measured.add_argument("--out", type=Path, help="where the results go, as JSON")
    options = parser.parse_args()
    folder = options.folder
    if options.verb == "pretrain":
        run_recipe("small", pretraining(options.row, options.data), folder / f"{options.row}-weights")
    elif options.verb == "evaluate":
        evaluate(folder, options.out)
    else:
        row, seed, share, data = options.row, options.seed, options.share, file_of(folder, options.share)
        name = run_name(row, seed, share, scratch=options.scratch)
        if options.scratch:
            run_recipe("small", from_scratch(row, seed, data), folder / name)
        else:
            run_recipe("finetune", fine_tuning(row, seed, data, folder / f"{row}-weights"), folder / name)


if __name__ == "__main__":
    main()
