"""``nearsight demo``: a small ConViT, the plain ViT of its size and a CNN of its training time, on photographs.

Settings and learning rates are those of results/clothing_split.md, which has the same with more seeds. Beside them
stands what needs no training: the nearest neighbour on pixels.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from nearsight.datasets.labelled import LabelledImages
    from nearsight.intervals import Estimate

DATA = "clothing"
SETTINGS: dict[str, Any] = {
    "image_size": 40,
    "batch": 64,
    "lr_batch": 0,
    "crop_scale": 0.4,
    "randaugment_ops": 0,
    "erasing": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "drop_path": 0.0,
    "ema": 0.0,
    "select": "last",
    "save_minutes": 1.0,
}
# Nine heads start as a 3×3 convolution; the ViT has the same width, depth and heads.
_SIZE = {"width": 108, "depth": 5}
ROWS: dict[str, dict[str, Any]] = {
    "ConViT": {
        "model": "convit_nano_64",
        "model_options": {**_SIZE, "num_gated_blocks": 3},
        "patch_size": 8,
        "lr": 5e-4,
    },
    "ViT": {"model": "deit_nano_64", "model_options": _SIZE, "patch_size": 8, "lr": 1e-3},
    "CNN": {"model": "resnet26", "model_options": {"width_multiplier": 0.25}, "lr": 2e-3},
}
EPOCHS = 20.0
TIMES_AS_LONG = {"CNN": 2}
"""A picture costs it half as much as the others."""
_NEIGHBOUR, _NEIGHBOUR_SIDE = "nearest neighbour", 12


@dataclass(frozen=True)
class Measured:
    """A row of the comparison."""

    accuracy: Estimate
    balanced: Estimate
    parameters: int = 0
    seconds: float = 0.0

    def words(self) -> tuple[str, ...]:
        cost = (f"{self.parameters:,}", f"{self.seconds:.0f} s") if self.parameters else ("", "")
        return (_percent(self.accuracy), _percent(self.balanced), *cost)


_HEADINGS = ("accuracy", "balanced accuracy", "parameters", "time")


def settings(row: str, seed: int, epochs: float) -> dict[str, Any]:
    """What a run changes of the recipe `small`; `epochs` are those of the ConViT."""
    own = epochs * TIMES_AS_LONG.get(row, 1)
    return {
        **SETTINGS,
        **ROWS[row],
        "epochs": own,
        "warmup_epochs": 0.05 * own,
        "eval_every": max(1.0, own / 20),
        "seed": seed,
    }


def demo_classification(out: Path, seed: int, epochs: float, device: str) -> int:
    """The runs, and the page that compares them."""
    code = _train_all(out, seed, epochs, device)
    if code:
        return code
    rows, verdict = measure(out, seed)
    width = max(map(len, rows))
    print(f"{'':{width}}  " + "  ".join(f"{heading:19}" for heading in _HEADINGS).rstrip())
    for name, row in rows.items():
        print(f"{name:{width}}  " + "  ".join(f"{word:19}" for word in row.words()).rstrip())
    print(verdict)
    print(f"report: {_write_page(out, rows, verdict)}")
    return 0


def _train_all(out: Path, seed: int, epochs: float, device: str) -> int:
    """All at once, each in a process with its share of the cores: small models gain little from more than one."""
    threads = str(max(1, (os.cpu_count() or 2) // len(ROWS)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    processes = {}
    for name in ROWS:
        code = "from nearsight.cli import app; app.listen(); from nearsight.cli.demo_classification import train_one; "
        code += f"train_one({str(out)!r}, {name!r}, {seed}, {epochs}, {device!r})"
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
    printers = [threading.Thread(target=_print_lines, args=item) for item in processes.items()]
    for printer in printers:
        printer.start()
    with contextlib.suppress(KeyboardInterrupt):  # the trainings receive it too, save and end by themselves
        for process in processes.values():
            process.wait()
    codes = [process.wait() for process in processes.values()]
    for printer in printers:
        printer.join()
    return max(codes, key=abs)


def _print_lines(name: str, process: subprocess.Popen) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            print(f"{name:6s} {line}", end="", flush=True)


def train_one(out: str, name: str, seed: int, epochs: float, device: str) -> None:
    """Train one of them, in a process of its own."""
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.training import train
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder

    recipe = resolve_recipe("small", None, {"data": DATA, "device": device, **settings(name, seed, epochs)})
    with reported():
        folder = RunFolder(Path(out) / name.lower())
        train(recipe, folder, callbacks=lambda trainer: [make_progress(trainer.total_steps, style="plain")])


def measure(out: Path, seed: int) -> tuple[dict[str, Measured], str]:
    """Every row on the test pictures, and what one run of each allows to say."""
    from nearsight.classification.correct import correct_pictures
    from nearsight.classification.recipe import ClassificationRecipe
    from nearsight.classification.task import ClassificationTask
    from nearsight.datasets.sources import open_data
    from nearsight.runs.folder import RunFolder
    from nearsight.runs.layout import DONE

    splits = open_data(DATA)
    assert splits.test is not None
    correct, done = {}, {}
    for name in ROWS:
        folder = RunFolder(out / name.lower())
        correct[name] = correct_pictures(ClassificationTask(folder.recipe(ClassificationRecipe)), "test", folder)
        done[name] = folder.read_json(DONE)
    correct[_NEIGHBOUR] = nearest_neighbour(splits.train, splits.test) == splits.test.labels
    accuracy, balanced, gaps = compare(correct, splits.test.labels)
    rows = {name: Measured(accuracy[name], balanced[name]) for name in correct}
    for name, summary in done.items():
        rows[name] = Measured(accuracy[name], balanced[name], summary["parameters"], summary["seconds"])
    return rows, verdict(gaps, len(splits.test), seed)


def compare(
    correct: dict[str, np.ndarray], labels: np.ndarray
) -> tuple[dict[str, Estimate], dict[str, Estimate], dict[str, Estimate]]:
    """Accuracy and balanced accuracy of every row, and the ConViT's accuracy less that of the others."""
    from nearsight.intervals import Draws, accuracies, estimate

    draws = Draws(len(labels))
    runs = {name: found[None].astype(float) for name, found in correct.items()}
    drawn = {name: draws.accuracies(run) for name, run in runs.items()}
    as_is = {name: accuracies(run)[0] for name, run in runs.items()}
    accuracy = {name: estimate(lambda own: own, [drawn[name]], [as_is[name]]) for name in runs}
    balanced = {
        name: estimate(lambda own: own, [draws.accuracies(run, labels)], [accuracies(run, labels)[0]])
        for name, run in runs.items()
    }
    first, *others = runs
    gaps = {
        other: estimate(lambda own, its: own - its, [drawn[first], drawn[other]], [as_is[first], as_is[other]])
        for other in others
    }
    return accuracy, balanced, gaps


def nearest_neighbour(train: LabelledImages, test: LabelledImages) -> np.ndarray:
    """The label of the training picture that is nearest in 12×12 pixels, for each test picture."""
    import numpy as np
    from PIL import Image

    def pixels(images: LabelledImages) -> np.ndarray:
        side, box = (_NEIGHBOUR_SIDE, _NEIGHBOUR_SIDE), Image.Resampling.BOX
        small = [np.asarray(Image.fromarray(images.read(index)).resize(side, box)) for index in range(len(images))]
        return np.stack(small).reshape(len(images), -1) / 255

    known, asked = pixels(train), pixels(test)
    distances = (known**2).sum(1) - 2 * asked @ known.T  # less what all of a row have in common
    return train.labels[distances.argmin(1)]


def verdict(gaps: dict[str, Estimate], num_test: int, seed: int) -> str:
    """What one run of each allows to say."""
    said = []
    for other, gap in gaps.items():
        sure = gap.low > 0 or gap.high < 0
        words = f"{abs(gap.value):.1f} points {'ahead of' if gap.value > 0 else 'behind'} the {other}"
        said.append(f"{words} [{gap.low:+.1f}, {gap.high:+.1f}]{'' if sure else ', which chance alone could explain'}")
    brackets = f"Brackets are 95 % intervals over {num_test} test pictures."
    seeds = f"This is seed {seed} alone: other seeds differ (--seed), and results/clothing_split.md has five."
    return f"The ConViT is {'; '.join(said)}. {brackets} {seeds}"


def _percent(value: Estimate) -> str:
    return f"{value.value:.1f} % [{value.low:.1f}, {value.high:.1f}]"


def _write_page(out: Path, rows: dict[str, Measured], said: str) -> Path:
    """All runs on one page: result, curves, and the pictures the runs have drawn."""
    from nearsight.classification.report import CAPTIONS
    from nearsight.reports import plots
    from nearsight.reports.page import Page, Picture, page_html, picture_file
    from nearsight.reports.run_report import run_files
    from nearsight.reports.words import model_words
    from nearsight.runs.atomic_files import replace
    from nearsight.runs.folder import RunFolder
    from nearsight.runs.layout import REPORT

    folders = {name: out / name.lower() for name in ROWS}
    models = {name: model_words(RunFolder(folder).recipe()) for name, folder in folders.items()}
    table: list[tuple[str, ...]] = [("", "model", *_HEADINGS)]
    table += [(name, models.get(name, "12×12 pixels"), *row.words()) for name, row in rows.items()]
    curves = plots.side_by_side({name: RunFolder(folder).metrics() for name, folder in folders.items()}, "top1")
    caption = "Loss on training batches and accuracy on the validation images, over epochs, of all models."
    pages = [Page("Result", said, (Picture("Curves", curves, caption),), tuple(table))]
    for name, folder in folders.items():
        drawn = []
        for figure in ("Gates", "Nonlocality", "Attention maps", "Worst mistakes"):
            file = folder / picture_file(figure)
            if file.exists():
                drawn.append(Picture(figure, file.read_bytes(), CAPTIONS[figure]))
        links = list(run_files(folder, f"{folder.name}/"))
        if (folder / REPORT).exists():
            links.insert(0, (f"{folder.name}/{REPORT}", "its own page, with more"))
        pages.append(Page(name, pictures=tuple(drawn), links=tuple(links)))
    path = out / REPORT
    replace(path, page_html("A ConViT, a ViT and a CNN on little data", pages).encode())
    return path
