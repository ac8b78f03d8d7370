"""`nearsight detect …`: train, evaluate and use detectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from nearsight.cli.training import resumable

if TYPE_CHECKING:
    from nearsight.engine.callbacks import Callback
    from nearsight.engine.trainer import Trainer

app = App(name="detect", help="Train detectors on images with boxes, measure them and use them.")


def _callbacks(trainer: Trainer) -> list[Callback]:
    from nearsight.engine.callbacks import make_progress
    from nearsight.engine.trackers import make_trackers

    progress = make_progress(trainer.total_steps)
    progress.note(f"run: {trainer.folder.path}  device: {trainer.device}  steps: {trainer.total_steps}")
    return [progress, *make_trackers(trainer.recipe, trainer.folder.path)]


@app.command
def train(
    data: str,
    /,
    *,
    recipe: str = "retinanet_small",
    config: Path | None = None,
    run: Path | None = None,
    model: str | None = None,
    image_size: int | None = None,
    epochs: float | None = None,
    batch: int | Literal["auto"] | None = None,
    lr: float | None = None,
    seed: int | None = None,
    init_from: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    fields: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    override: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train a detector, or go on with the run in --run.

    Parameters
    ----------
    data
        A COCO, Pascal VOC or YOLO folder, a COCO json, an archive of either, or `bccd`, which comes along.
    recipe
        `retinanet` (the paper's, for COCO) or `retinanet_small` (some hundred images, from scratch).
    config
        A YAML file of recipe fields.
    run
        The run's folder; a new one under runs/ by default.
    model
        Such as `retinanet_resnet50`; a wrong name lists them.
    image_size
        Side of the training pictures in pixels.
    epochs
        Passes over the training images.
    batch
        Images in an update; auto takes fewer where there are fewer images, or where memory runs out.
    lr
        Learning rate at the recipe's own batch; it scales with yours.
    seed
        Of initialisation, order and augmentation.
    init_from
        Start from the backbone of a classification run (of its sizes, unless you set others), or from a detection run.
    device
        cpu, cuda or mps.
    workers
        Processes that read images, when they do not fit the device.
    fields
        Any other field of the recipe, as field=value; may be repeated.
    override
        Allow changes that alter a run that is resumed.
    """
    from nearsight.detection.model import with_backbone_options
    from nearsight.detection.recipe import DetectionRecipe
    from nearsight.engine.trackers import check_trackers
    from nearsight.engine.training import train as train_run
    from nearsight.recipes.files import read_changes, resolve_recipe
    from nearsight.runs.exits import reported
    from nearsight.runs.folder import RunFolder, free_run_path

    named = {
        "model": model, "image_size": image_size, "epochs": epochs, "batch": None if batch == "auto" else batch,
        "batch_auto": True if batch == "auto" else None, "lr": lr, "seed": seed, "init_from": init_from,
        "device": device, "workers": workers,
    }  # fmt: skip
    flags = {name: value for name, value in named.items() if value is not None} | _assignments(fields or [])
    with reported():
        resolved = resolve_recipe(recipe, config, {"data": data, **flags})
        if not isinstance(resolved, DetectionRecipe):
            raise ValueError(f"recipe {recipe!r} is for {resolved.task}; use retinanet or retinanet_small")
        folder = RunFolder(run if run is not None else free_run_path(Path("runs"), resolved.model))
        resolved = with_backbone_options(resolved, folder)
        check_trackers(resolved)
        fit_batch = "batch" not in {**(read_changes(config) if config else {}), **flags}
    with resumable(folder.path):
        summary = train_run(resolved, folder, callbacks=_callbacks, override=override, fit_batch=fit_batch)
    if "test" in summary:
        _print_values("test", summary["test"])
    _print_unread(summary.get("problems", []))
    print(f"done: {folder.path}")
    return 0


def _print_unread(problems: list[str]) -> None:
    from nearsight.text import printable

    for problem in problems:
        print(f"not read: {printable(problem)}")


def _assignments(pairs: list[str]) -> dict[str, Any]:
    from nearsight.recipes.files import plain_yaml

    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes field=value, not {pair!r}")
        try:
            values[name.strip().replace("-", "_")] = plain_yaml(text)
        except ValueError as error:
            raise ValueError(f"--set {pair}: the value is not plain YAML: {error}") from error
    return values


def _number(value: float) -> str:
    """Three places; a dash where there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def _print_values(split: str, values: dict[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("value", split, title="measured, by COCO's protocol")
    for name, value in values.items():
        table.add_row(name, _number(value))
    Console().print(table)


@app.command(name="eval")
def evaluate(
    run: Path,
    data: str | None = None,
    /,
    *,
    split: Literal["train", "val", "test"] | None = None,
    results: Path | None = None,
    device: str = "auto",
) -> int:
    """Measure a run's selected weights: COCO's mAP, by overlap, area and class.

    Parameters
    ----------
    run
        The run's folder.
    data
        Other data with the same classes, of which nothing is set aside; the run's own by default.
    split
        train, val or test; by default val, and of other data val, test, or all of it where it has neither.
    results
        Also write the detections to this file, in COCO's results format.
    device
        cpu, cuda or mps.
    """
    from nearsight.detection import KIND, EvalOptions

    options = EvalOptions(results=str(results or ""))
    found = KIND.evaluate(run, data or "", split=split or "", device=device, options=options)
    print(found.origin)
    _print_values(found.split, found.values)
    for name, values in found.per_class.items():
        print(f"{name}: " + ", ".join(f"{measure} {_number(value)}" for measure, value in values.items()))
    for note in found.notes:
        print(note)
    return 0


@app.command
def predict(
    run: Path,
    /,
    *images: str,
    out: Path = Path("predictions"),
    min_score: float = 0.3,
    device: str = "auto",
) -> int:
    """Find objects in images: draws them, and writes them as COCO's results.

    Parameters
    ----------
    run
        The folder of a detection run.
    images
        Image files or folders of them.
    out
        Folder for the drawn images and results.json.
    min_score
        Smallest score that is drawn and written.
    device
        cpu, cuda or mps.
    """
    from nearsight.detection import KIND, PredictOptions

    if not images:
        raise ValueError("name images or folders to look at")
    detector = KIND.load(run, device)
    problems = []
    for one in detector.predict(images, PredictOptions(out=str(out), min_score=min_score)):
        print(f"{one.name}: {one.words}")
        problems.append(one.problem)
    if all(problems):
        raise ValueError("none of the images could be read")
    for note in detector.notes:
        print(note)
    return 0


# Seconds on two CPU cores, measured: loading, evaluations and drawing together, and one epoch.
_DEMO_START, _DEMO_EPOCH, _DEMO_DRAWN = 12.0, 1.3, 4


def _rough(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 50 else f"{max(1, round(seconds / 60))} min"


@app.command
def demo(*, run: Path | None = None, epochs: float = 40.0, device: str = "auto") -> int:
    """Train a small detector on the bundled blood cells, measure it and draw what it finds: about a minute on a CPU.

    Parameters
    ----------
    run
        The run's folder; a new one under runs/ by default.
    epochs
        Passes over its 36 training images.
    device
        cpu, cuda or mps.
    """
    from nearsight.detection.sources import BUNDLED, open_detection
    from nearsight.runs.folder import free_run_path

    folder = free_run_path(Path("runs"), "detect-demo") if run is None else run
    seconds = _DEMO_START + _DEMO_EPOCH * epochs
    print(
        f"a small RetinaNet learns to find blood cells in 36 pictures ({epochs:g} epochs), is measured on 12 others "
        f"and draws what it finds in {_DEMO_DRAWN}: about {_rough(seconds)} on two CPU cores",
        flush=True,
    )
    small = "{channels: 48, head_depth: 2, smallest_anchor: 16, width_multiplier: 0.25}"
    train(
        BUNDLED,
        run=folder,
        model="retinanet_resnet26",
        image_size=256,
        epochs=epochs,
        batch=6,
        device=device,
        fields=[
            f"model_options={small}",
            "image_height=192",
            "flip_vertical=0.5",
            "warmup_epochs=0.5" if epochs < 10 else "warmup_epochs=2",
            "lr=1.5e-3",
            "lr_batch=6",
            "ema=0.98",
            f"eval_every={max(epochs / 4, 1):g}",
            "channels_last=false",
        ],
    )
    splits = open_detection(BUNDLED)
    assert splits.test is not None
    pictures = [str(splits.test.root / name) for name in splits.test.names[:_DEMO_DRAWN]]
    return predict(folder, *pictures, out=folder / "found", device=device)
