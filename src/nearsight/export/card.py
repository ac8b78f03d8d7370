"""The model card of a run: what it was trained on and how, how good it is, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nearsight.intervals import share_interval
from nearsight.recipes.recipe import Recipe
from nearsight.reports.words import measured, model_words
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DONE, ENVIRONMENT
from nearsight.tasks import task_kind
from nearsight.text import printable, value_words

_MOST_CLASSES = 50
_PIPELINES = {"classification": "image-classification", "detection": "object-detection"}
_CARD = """---
{front}---

# {title}

{what}

```python
import nearsight

model = nearsight.load("{folder}")  # this folder
model("picture.jpg")  # {answer}
```

## Figures

{figures}

They are of one training. Another seed gives other weights; its figures may differ by more than the interval, which
covers the pictures alone.

## Data

{data}

## Training

{training}

| setting | value |
|---|---|
{settings}

## Limits

- It was measured on pictures of the same source as its training pictures. On others it may be worse, and nothing here
  says by how much.
- It knows its {num_classes} classes and no other: a picture of something else is given one of them as well.
- Probabilities were not calibrated.
- It was not examined for unfair errors on pictures of people.

## Licence

TODO: the licence under which you publish these weights. The data's licence may bind you.
"""


def model_card(folder: str, run: RunFolder, task: str, classes: list[str]) -> str:
    """README.md for the folder that a run's model is exported to. Names of folders are left out of settings."""
    recipe, kind = run.recipe(), task_kind(task)
    data = printable(Path(recipe.data).name or "unknown")
    front = {"library_name": "nearsight", "tags": ["vision", "nearsight", recipe.model.replace(":", "-")]}
    if task in _PIPELINES:
        front["pipeline_tag"] = _PIPELINES[task]
    listed = ", ".join(f"`{printable(one)}`" for one in classes[:_MOST_CLASSES])
    more = f" and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
    return _CARD.format(
        front=yaml.safe_dump(front, sort_keys=False),
        title=f"{model_words(recipe)} on {data}",
        what=f"A model for {kind.help.split(':')[0]}, trained with nearsight. {len(classes)} classes: {listed}{more}.",
        folder=folder,
        answer="{class: probability, …}" if task == "classification" else "[{class, score, box}, …]",
        figures=_figures(run),
        data=_data(run, data),
        training=_training(run),
        settings="\n".join(f"| {name} | {value} |" for name, value in _settings(recipe)),
        num_classes=len(classes),
    )


def _figures(run: RunFolder) -> str:
    """What the run measured of its selected weights: on test where there is one, and on val."""
    summary: Mapping[str, Any] = run.read_json(DONE) or {}
    images, lines = summary.get("images", {}), []
    for name, value in summary.get("test", {}).items():
        lines.append(f"| test | {measured(name, value)} | {_spread(name, value, images.get('test'))} |")
    if selected := summary.get("selected"):
        name, value = run.recipe().selection, selected["value"]
        spread = _spread(name, value, images.get("val"))
        lines.append(f"| val, which selected these weights | {measured(name, value)} | {spread} |")
    if not lines:
        return "The run was not finished when this was written: nothing was measured."
    return "\n".join(["| split | measured | images, 95 % interval |", "|---|---|---|", *lines])


def _spread(name: str, value: float, count: int | None) -> str:
    if not count:
        return "not recorded"
    if name not in ("top1", "top5"):
        return f"n = {count}"
    low, high = share_interval(round(value / 100 * count), count)
    return f"n = {count}, [{100 * low:.1f}, {100 * high:.1f}]"


def accuracy_words(hits: int, count: int) -> str:
    low, high = share_interval(hits, count)
    return f"{100 * hits / count:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _data(run: RunFolder, name: str) -> str:
    images = (run.read_json(DONE) or {}).get("images", {})
    counts = ", ".join(f"{count} images in {split}" for split, count in images.items())
    return f"{name}{': ' + counts if counts else ''}. TODO: where it comes from, and who may use it."


def _training(run: RunFolder) -> str:
    summary, environment = run.read_json(DONE) or {}, run.read_json(ENVIRONMENT) or {}
    packages = environment.get("packages", {})
    with_ = ", ".join(f"{name} {number}" for name, number in packages.items() if name in ("nearsight", "torch", "timm"))
    steps, seconds = summary.get("steps"), summary.get("seconds")
    took = f"{steps} steps in {seconds:.0f} s, " if steps is not None and seconds is not None else ""
    device = printable(str(environment.get("device", "an unknown device")))
    return f"{took}on {device}, with {with_ or 'unknown versions'}."


def _settings(recipe: Recipe) -> list[tuple[str, str]]:
    """Every setting, but of paths only the last part."""
    settings = []
    for name, value in recipe.as_dict().items():
        text = Path(value).name if isinstance(value, str) and "/" in value else value_words(value)
        settings.append((name, printable(text).replace("|", "\\|")))
    return settings
