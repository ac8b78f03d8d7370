"""ConViT, a plain ViT and a CNN on the bundled clothing pictures, beside two methods without training.

    PYTHONPATH=src python benchmarks/clothing_split.py split              # files of all pictures and of shares
    PYTHONPATH=src python benchmarks/clothing_split.py train CONVIT 0     # one run; also VIT and CNN, seeds from 0 on
    PYTHONPATH=src python benchmarks/clothing_split.py train VIT 0 --share 10
    PYTHONPATH=src python benchmarks/clothing_split.py evaluate           # the finished runs, on the test pictures

All files are under --folder. A training opens a file without the test pictures. `evaluate` adds a nearest neighbour and
a kernel ridge on pixels. It prints accuracy, balanced accuracy (the mean of the recalls of ten classes) and their
differences with 95 % intervals: test pictures and seeds drawn again 10 000 times. results/clothing_split.md has the
rule that was written before, and what was found.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearsight.cli import demo_classification as demo
from nearsight.intervals import accuracies, seeds_interval

SEED = 0
SHARES = (100, 30, 10)
# sha256 of the sorted names of each part, a line each.
DIGESTS = {
    "train": "6b8a2a70ff8d8bf431d5c653723bdd63b5c7219157e2d19d37fb0ad2d7c91d0a",
    "val": "da27860f2c94d6973b18b48dfeeaa65932009f5c9565ee427959b9a71532ac2c",
    "test": "536e9941d1bcdaf56c95f8290c6c1df704ea4efd28c2453114c095163000334c",
    "train 30 %": "94fea7f4b788070d04fdd77df002d696fdccda861b59d6315f09c75db0050ae7",
    "train 10 %": "928462c66ae1f4581b45cb4141e68d2c7a0fd34a0c0dc55779009eef71621459",
}
STEPS = 820  # batches of 64: 20 epochs of all training pictures
ROWS = {name.lower(): name for name in demo.ROWS}
DRAWS = 10_000


class Pictures:
    """The bundled pictures: pixels, labels, names, and the indices of every part, by name."""

    def __init__(self) -> None:
        from nearsight.datasets.named import open_clothing

        sets = open_clothing()
        every = list(sets.values())
        self.classes = every[0].classes
        self.pixels = np.stack([images.read(index) for images in every for index in range(len(images))])
        self.labels = np.concatenate([images.labels for images in every])
        self.names = [name for images in every for name in images.names]
        ends = np.cumsum([len(images) for images in every])
        self.parts = {part: np.arange(end - len(sets[part]), end) for part, end in zip(sets, ends, strict=True)}
        for share in SHARES[1:]:
            self.parts[f"train {share} %"] = self._share_of_train(share)
        for part, indices in self.parts.items():
            text = "\n".join(sorted(self.names[index] for index in indices))
            if hashlib.sha256(text.encode()).hexdigest() != DIGESTS[part]:
                raise SystemExit(f"{part} is not the part that was measured: other pictures are in it")

    def small(self, side: int) -> np.ndarray:
        box = Image.Resampling.BOX
        return np.stack([np.asarray(Image.fromarray(one).resize((side, side), box), np.float32) for one in self.pixels])

    def _share_of_train(self, share: int) -> np.ndarray:
        """The first of each class, in the order of a hash of their names."""
        from nearsight.images.imageset import name_ranks

        train, rank, kept = self.parts["train"], name_ranks(self.names, SEED + 1), []
        for label in range(len(self.classes)):
            of_class = train[self.labels[train] == label]
            kept.append(of_class[np.argsort(rank[of_class])[: max(1, round(share / 100 * len(of_class)))]])
        return self._by_name(np.concatenate(kept))

    def _by_name(self, indices: np.ndarray) -> np.ndarray:
        return indices[np.argsort(np.array(self.names)[indices])]

    def save(self, folder: Path) -> None:
        """A file for each share of train, with val, and the names of all parts."""
        folder.mkdir(parents=True, exist_ok=True)
        val = self.parts["val"]
        for share in SHARES:
            train = self.parts["train" if share == 100 else f"train {share} %"]
            np.savez(
                folder / f"clothing_{share}.npz", classes=np.array(self.classes),
                train_images=self.pixels[train], train_labels=self.labels[train],
                val_images=self.pixels[val], val_labels=self.labels[val],
            )  # fmt: skip
        names = {part: [self.names[index] for index in indices] for part, indices in self.parts.items()}
        (folder / "split.json").write_text(json.dumps(names, indent=1) + "\n")


def settings(row: str, seed: int, num_train: int) -> dict[str, Any]:
    """The demo's, with the same number of batches for every share, and less kept."""
    epochs = STEPS / (num_train // demo.SETTINGS["batch"])
    own = demo.settings(ROWS[row], seed, epochs)
    return {**own, "eval_every": own["epochs"] / 5, "device": "cpu", "report": False, "keep": 1}


def train_row(folder: Path, row: str, seed: int, share: int) -> None:
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.training import train
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder

    file = folder / f"clothing_{share}.npz"
    if not file.exists():
        Pictures().save(folder)
    with np.load(file) as arrays:
        num_train = len(arrays["train_labels"])
    recipe = resolve_recipe("small", None, {**settings(row, seed, num_train), "data": str(file)})
    run = RunFolder(folder / _run_name(row, seed, share))
    with reported():
        train(recipe, run, callbacks=lambda trainer: [make_progress(trainer.total_steps, style="plain")])


def _run_name(row: str, seed: int, share: int) -> str:
    return f"{row}-{share}-s{seed}"


def correct_of_run(run: Path, pictures: Pictures) -> np.ndarray:
    """1 for each test picture that the last weights name rightly, 0 for the others."""
    import torch

    from nearsight.classification.model import build_classifier
    from nearsight.classification.recipe import ClassificationRecipe
    from nearsight.datasets.labelled import ArrayImages
    from nearsight.datasets.loading import load_all
    from nearsight.images.transforms import BatchEval
    from nearsight.runs.folder import RunFolder
    from nearsight.weights import trained_model

    recipe = RunFolder(run).recipe(ClassificationRecipe)
    test = pictures.parts["test"]
    labels = pictures.labels[test]
    images = load_all(ArrayImages(pictures.pixels[test], labels, pictures.classes), recipe.image_size)
    model = trained_model(build_classifier(recipe, len(pictures.classes)), RunFolder(run), torch.device("cpu"))
    normalise = BatchEval(recipe.image_size, crop_ratio=recipe.eval_crop)
    with torch.no_grad():
        logits = torch.cat([model(normalise(batch)) for batch in images.split(256)])
    return (logits.argmax(1).numpy() == labels).astype(int)


def neighbours(pictures: Pictures) -> dict[str, np.ndarray]:
    """The nearest neighbour on 12×12 pixels, and ridge regression with a Gaussian kernel on 16×16 (chosen on val)."""
    from nearsight.datasets.named import open_clothing

    train, test = pictures.parts["train"], pictures.parts["test"]
    targets, truth = pictures.labels[train], pictures.labels[test]
    pixels = pictures.small(16).reshape(len(pictures.labels), -1).astype(np.float64) / 255
    among = _distances(pixels[train], pixels[train])
    width, one_hot = np.median(among), np.eye(len(pictures.classes))[targets]
    weights = np.linalg.solve(np.exp(-among / width) + 0.3 * np.eye(len(train)), one_hot - one_hot.mean(0))
    scores = np.exp(-_distances(pixels[test], pixels[train]) / width) @ weights + one_hot.mean(0)
    sets = open_clothing()
    found = {"nearest neighbour": demo.nearest_neighbour(sets["train"], sets["test"]), "kernel ridge": scores.argmax(1)}
    return {name: (guess == truth).astype(int)[None] for name, guess in found.items()}


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0)


class Drawn:
    """Test pictures and seeds drawn again, the same pictures and seeds for every row."""

    def __init__(self, count: int, num_seeds: int) -> None:
        generator = np.random.default_rng(0)
        self.pictures = generator.multinomial(count, np.full(count, 1 / count), DRAWS).astype(float)
        self.seeds = generator.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), DRAWS) / num_seeds

    def scores(self, correct: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """The mean over seeds in each draw, in per cent, with labels balanced; correct [seeds, pictures]."""
        return (accuracies(correct, labels, self.pictures) * self.seeds).sum(1)


def measures(terms: list[tuple[int, np.ndarray]], labels: np.ndarray) -> dict[str, Any]:
    """A sum of rows with their signs, seed by seed: mean, seeds, and 95 % intervals."""
    n = min(len(correct) for _, correct in terms)
    drawn, out = Drawn(len(labels), n), {"n": n}
    for name, classes in (("accuracy", None), ("balanced accuracy", labels)):
        values = sum(sign * accuracies(correct[:n], classes)[0] for sign, correct in terms)
        spread = sum(sign * drawn.scores(correct[:n], classes) for sign, correct in terms)
        out[name] = {
            "mean": round(float(values.mean()), 2), "seeds": values.round(2).tolist(),
            "interval of pictures and seeds": np.quantile(spread, (0.025, 0.975)).round(2).tolist(),
        }  # fmt: skip
        if n > 1:
            seeds = seeds_interval(values)
            out[name]["t interval of seeds"] = [round(seeds.low, 2), round(seeds.high, 2)]
    return out


def compare(rows: dict[str, np.ndarray], labels: np.ndarray) -> dict[str, Any]:
    """Every row [seeds, pictures], and pairs of rows of one share. A row without seeds stands beside each seed."""
    out: dict[str, Any] = {"rows": {}, "differences": {}}
    for name, correct in rows.items():
        out["rows"][name] = {**measures([(1, correct)], labels), "correct": correct.tolist()}
    for (one, first), (other, second) in itertools.combinations(rows.items(), 2):
        if _share(one) == _share(other) and len(first) > 1:
            second = np.repeat(second, len(first), 0) if len(second) == 1 else second
            out["differences"][f"{one} less {other}"] = measures([(1, first), (-1, second)], labels)
    gap = ("convit 10 %", "vit 10 %", "vit", "convit")
    if all(name in rows for name in gap):
        terms = list(zip((1, -1, 1, -1), (rows[name] for name in gap), strict=True))
        out["differences"]["convit less vit at 10 % less the same at 100 %"] = measures(terms, labels)
    return out


def _share(name: str) -> str:
    return name.partition(" ")[2] if name.endswith("%") else ""


def compact(value: Any) -> str:
    """JSON with one line for each array."""
    text = json.dumps(value, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", "", found.group()).replace(",", ", "), text) + "\n"


def evaluate(folder: Path, out: Path | None) -> None:
    pictures, rows = Pictures(), {}
    for share, row in itertools.product(SHARES, ROWS):
        runs = [folder / _run_name(row, seed, share) for seed in range(1000)]
        runs = list(itertools.takewhile(lambda run: (run / "done.json").exists(), runs))
        if runs:
            name = row if share == 100 else f"{row} {share} %"
            rows[name] = np.stack([correct_of_run(run, pictures) for run in runs])
    rows |= neighbours(pictures)
    results = compare(rows, pictures.labels[pictures.parts["test"]])
    for name, found in [*results["rows"].items(), *results["differences"].items()]:
        words = [
            f"{measure} {found[measure]['mean']:.2f} {found[measure]['interval of pictures and seeds']}"
            for measure in ("accuracy", "balanced accuracy")
        ]
        print(f"{name} (n = {found['n']}): {', '.join(words)}")
    if out is not None:
        out.write_text(compact(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/clothing_split"), help="for files and runs")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("split", help="write the parts and their names")
    one = verbs.add_parser("train", help="train one row")
    one.add_argument("row", type=str.lower, choices=tuple(ROWS))
    one.add_argument("seed", type=int)
    one.add_argument("--share", type=int, choices=SHARES, default=100, help="per cent of the training pictures")
    measured = verbs.add_parser("evaluate", help="measure the runs that are finished")
    measured.add_argument("--out", type=Path, help="where the results go, as JSON")
    options = parser.parse_args()
    if options.verb == "split":
        Pictures().save(options.folder)
    elif options.verb == "train":
        train_row(options.folder, options.row, options.seed, options.share)
    else:
        evaluate(options.folder, options.out)


if __name__ == "__main__":
    main()
