"""Using a finished run: its model, its measures on some data, its predictions for some pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from nearsight.data import BadImage, BatchEval, EvalTransform
from nearsight.data.decode import IMAGE_SUFFIXES, read_image_file
from nearsight.train.classifier import build_classifier
from nearsight.train.machine import pick_device, pick_precision
from nearsight.train.recipe import Recipe
from nearsight.train.recipe_file import thaw
from nearsight.train.runfolder import CONFIG, RunFolder
from nearsight.train.runner import make_task
from nearsight.train.task import Place
from nearsight.train.weights import load_weights, selected_weights

_BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """One picture: its classes from the likeliest on, or why it could not be read."""

    name: str
    classes: tuple[tuple[str, float], ...]
    problem: str = ""


def run_recipe(run: str | Path) -> Recipe:
    """The settings of a run folder."""
    folder = RunFolder(run)
    if not folder.has_config:
        raise ValueError(f"{run} is not a run: it has no {CONFIG}")
    return thaw(folder.path / CONFIG)


def evaluate_run(
    run: str | Path, data: str = "", *, split: str = "", device: str = "auto"
) -> tuple[str, str, dict[str, float]]:
    """(what was opened, split, values) of a run's selected weights on its own data or on ``data``.

    ``split`` is val, test or train; by default test where there is one.
    """
    trained = run_recipe(run)
    recipe = trained.with_changes(
        data=data or trained.data, device=device, init_from="", teacher="", distillation="none"
    )
    if data:
        recipe = recipe.with_changes(fraction=1.0)
    task = make_task(recipe)
    expected = _names(Path(run) / "classes.txt")
    found = task.files().get("classes.txt", "").splitlines()
    if expected and found != expected:
        odd = sorted(set(found) ^ set(expected))[:5]
        raise ValueError(f"{data} does not have the run's classes; they differ in: {', '.join(odd) or 'their order'}")
    split = split or ("test" if task.has_split("test") else "val")
    if split not in ("train", "val", "test") or not task.has_split(split):
        raise ValueError(
            f"there is no split {split!r} here; use val{', test' if task.has_split('test') else ''} or train"
        )
    place = _place(recipe)
    model = task.build_model()
    load_weights(model, selected_weights(RunFolder(run)), str(run))
    return task.describe()[0], split, dict(task.evaluate(model.to(place.device), split, place))


def load_classifier(run: str | Path) -> tuple[nn.Module, Recipe, list[str]]:
    """(model with the selected weights, recipe, class names) of a classification run."""
    recipe = run_recipe(run)
    classes = _names(Path(run) / "classes.txt")
    if recipe.task != "classification" or not classes:
        raise ValueError(f"{run} is not a classification run with a list of classes")
    model = build_classifier(recipe.with_changes(init_from=""), len(classes))
    load_weights(model, selected_weights(RunFolder(run)), str(run))
    return model.eval(), recipe, classes


@torch.no_grad()
def predict_images(
    run: str | Path, images: Sequence[str | Path], *, top: int = 5, device: str = "auto"
) -> list[Prediction]:
    """What a run says of picture files and folders of them, in the order given. An unreadable one is reported."""
    paths = list(picture_files(images))
    model, recipe, classes = load_classifier(run)
    place = _place(recipe.with_changes(device=device))
    model.to(place.device)
    fit = EvalTransform(recipe.image_size, crop_ratio=recipe.eval_crop)
    normalise = BatchEval(recipe.image_size).to(place.device)
    predictions: list[Prediction] = []
    for start in range(0, len(paths), _BATCH):
        readable, problems = [], {}
        for path in paths[start : start + _BATCH]:
            try:
                readable.append((path, fit(read_image_file(path, str(path)))))
            except BadImage as bad:
                problems[path] = bad.reason
        found: dict[Path, tuple[tuple[str, float], ...]] = {}
        if readable:
            pixels = torch.stack([image for _, image in readable]).to(place.device)
            shares = model(normalise(pixels)).float().softmax(dim=1).cpu()
            best = shares.topk(min(top, len(classes)), dim=1)
            for (path, _), values, places in zip(readable, best.values.tolist(), best.indices.tolist(), strict=True):
                found[path] = tuple((classes[place], value) for place, value in zip(places, values, strict=True))
        for path in paths[start : start + _BATCH]:
            predictions.append(Prediction(str(path), found.get(path, ()), problems.get(path, "")))
    return predictions


def picture_files(sources: Iterable[str | Path]) -> Iterable[Path]:
    """The files themselves, and the pictures in folders, sorted."""
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise ValueError(f"there is no picture in {path}: no file ends in {', '.join(sorted(IMAGE_SUFFIXES))}")
            yield from found
        elif path.exists():
            yield path
        else:
            raise ValueError(f"{path}: no such file or folder")


def _place(recipe: Recipe) -> Place:
    device = pick_device(recipe.device)
    return Place(device, precision=pick_precision("auto", device))


def _names(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
