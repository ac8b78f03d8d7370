"""``nearsight demo``, on two CPU cores: a small ConViT and the plain ViT of its size, equal settings, a few minutes.

It shows how a run goes. Its figures are of one seed, and clothing's official split has another mix of classes in test
than in train; results/clothing_split.md has what stands.

``nearsight demo --task detection``: a small RetinaNet learns to find blood cells, about a minute.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

SETTINGS: dict[str, Any] = {
    "data": "clothing",
    "image_size": 40,
    "patch_size": 8,
    "epochs": 15.0,
    "warmup_epochs": 1.0,
    "batch": 64,
    "lr": 1e-3,
    "lr_batch": 0,
    "crop_scale": 0.4,
    "randaugment_ops": 0,
    "erasing": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "drop_path": 0.0,
    "ema": 0.0,
    "eval_every": 1.0,
    "save_minutes": 1.0,
}
# Nine heads start as a 3×3 convolution; the ViT has the same width, depth and heads.
_SIZE = {"width": 108, "depth": 5}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ConViT": ("convit_nano_64", {**_SIZE, "num_gated_blocks": 3}),
    "ViT": ("deit_nano_64", _SIZE),
}
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


def demo(
    *,
    task: Literal["classification", "detection"] = "classification",
    out: Path | None = None,
    seed: int = 0,
    epochs: float | None = None,
    device: str = "cpu",
) -> int:
    """Train a small ConViT and the plain ViT of its size on the bundled photographs of clothing, and compare them.

    The figures are of one seed, and clothing's official split has another mix of classes in test than in train.
    With --task detection: train a small detector on the bundled blood cells, measure it and draw what it finds.

    Parameters
    ----------
    task
        Which of the two.
    out
        Folder for the runs and what is made of them; by default runs/demo, for detection a new one under runs/.
    seed
        Seed of the runs.
    epochs
        Epochs of each run, by default 15 and 40; fewer are quicker and say less.
    device
        cpu, cuda or mps.
    """
    if task == "detection":
        return demo_detection(out, seed, DETECTOR_EPOCHS if epochs is None else epochs, device)
    return demo_classification(out or Path("runs/demo"), seed, SETTINGS["epochs"] if epochs is None else epochs, device)


def demo_classification(out: Path, seed: int, epochs: float, device: str) -> int:
    """Both runs, and the page that compares them."""
    from nearsight.runs.folder import RunFolder
    from nearsight.runs.layout import DONE

    code = _train_both(out, seed, epochs, device)
    if code:
        return code
    summaries = {name: RunFolder(out / name.lower()).read_json(DONE) for name in MODELS}
    verdict = compare_two(summaries, num_test=_count_test_images())
    page = _write_page(out, summaries, verdict, seed)
    for name, summary in summaries.items():
        print(f"{name:7s} test top-1 {summary['test']['top1']:.1f} %  ({summary['parameters']:,} parameters, ", end="")
        print(f"{summary['seconds']:.0f} s)")
    print(verdict)
    print(f"report: {page}")
    return 0


def _train_both(out: Path, seed: int, epochs: float, device: str) -> int:
    """Both at once, each in a process with half of the cores: small models gain little from more than one."""
    threads = str(max(1, (os.cpu_count() or 2) // len(MODELS)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    processes = {}
    for name in MODELS:
        code = "from nearsight.cli import app; app.listen(); from nearsight.cli.demo import train_one; "
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
    for line in process.stdout:
        print(f"{name:7s} {line}", end="", flush=True)


def train_one(out: str, name: str, seed: int, epochs: float, device: str) -> None:
    """Train one of the two, in a process of its own."""
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.training import train
    from nearsight.recipes.files import resolve_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder

    model, options = MODELS[name]
    changes = {**SETTINGS, "model": model, "model_options": options, "seed": seed, "epochs": epochs, "device": device}
    changes["warmup_epochs"] = min(SETTINGS["warmup_epochs"], epochs / 5)
    recipe = resolve_recipe("small", None, changes)
    with reported():
        folder = RunFolder(Path(out) / name.lower())
        train(recipe, folder, callbacks=lambda trainer: [make_progress(trainer.total_steps, style="plain")])


def compare_two(summaries: dict[str, dict[str, Any]], num_test: int) -> str:
    """The conclusion that one run of each allows."""
    shares = {name: summary["test"]["top1"] / 100 for name, summary in summaries.items()}
    ahead = 100 * (shares["ConViT"] - shares["ViT"])
    error = 100 * math.sqrt(sum(share * (1 - share) / num_test for share in shares.values()))
    said = f"The ConViT is {abs(ahead):.1f} points {'ahead' if ahead > 0 else 'behind'}"
    verdict = "more than chance would explain" if abs(ahead) > 2 * error else "chance alone could explain this"
    said += f"; two standard errors on {num_test} test images are {2 * error:.1f} points: {verdict}, for these two"
    said += " sets of weights. n = 1 seed each: other seeds differ (--seed)."
    if ahead <= 0:
        said += " The paper's finding, ConViT ahead on little data, does not show here."
    return said


def _count_test_images() -> int:
    from nearsight.datasets.sources import open_data

    test = open_data(SETTINGS["data"]).test
    assert test is not None
    return len(test)


def _write_page(out: Path, summaries: dict[str, dict[str, Any]], verdict: str, seed: int) -> Path:
    """Both runs on one page: result, curves, and the pictures the runs have drawn."""
    from nearsight.classification.report import CAPTIONS
    from nearsight.reports import plots
    from nearsight.reports.page import Page, Picture, page_html, picture_file
    from nearsight.reports.run_report import run_files
    from nearsight.reports.words import model_words
    from nearsight.runs.atomic_files import replace
    from nearsight.runs.folder import RunFolder
    from nearsight.runs.layout import REPORT

    folders = {name: out / name.lower() for name in summaries}
    rows = [("", "model", "test top-1", "val top-1 (selected)", "parameters", "time")]
    for name, summary in summaries.items():
        test, val = summary["test"]["top1"], summary["selected"]["value"]
        cost = (f"{summary['parameters']:,}", f"{summary['seconds']:.0f} s")
        rows.append((name, model_words(RunFolder(folders[name]).recipe()), f"{test:.1f} %", f"{val:.1f} %", *cost))
    curves = plots.side_by_side({name: RunFolder(folder).metrics() for name, folder in folders.items()}, "top1")
    caption = "Loss on training batches and accuracy on the validation images, over epochs, of both models."
    pages = [Page("Result", f"{verdict} Seed {seed}.", (Picture("Curves of both", curves, caption),), tuple(rows))]
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
    replace(path, page_html("A ConViT and a ViT on little data", pages).encode())
    return path


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
