"""Every kind of task by name: what its recipe, its data and its verbs are. Imports no torch.

    task_kind("detection").recipe        the class of its recipes
    task_of_data("bccd").name            "detection": the data has boxes

A task is one package with a `TaskKind`. Those of nearsight are found by name; another one calls `register`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

TASKS = ("classification", "detection")
"""The packages of nearsight that are tasks."""


@dataclass(frozen=True)
class Evaluation:
    """Values of a run's selected weights, the data they were measured on, and notes about that for the user."""

    origin: str
    split: str
    values: dict[str, float]
    fingerprints: Mapping[str, str]
    """Of the split of the run's own data that was measured, as it is now; empty for other data. `eval` says when it is
    not as it was for the training."""
    notes: tuple[str, ...] = ()
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture, as text and as a JSON record; or why it could not be read."""

    name: str
    words: str
    record: dict[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class Portable:
    """A trained model as it is taken elsewhere, and what there has to be known of it."""

    network: Any
    """The model itself, with its weights."""
    forward: Any
    """A module: normalised images [B, C, H, W] → a tensor, or a tuple of tensors."""
    outputs: tuple[str, ...]
    """What these tensors are called."""
    per_image: bool
    """Whether the outputs have a row for each image, in order."""
    classes: Sequence[str]
    preprocessing: Mapping[str, Any]
    """How pictures become its images, in timm's words where timm has one."""
    prepare: Callable[[Sequence[Any]], Any]
    """Pictures uint8 [H, W, 3] → images as the network is given them."""
    image_size: tuple[int, int]
    stride: int
    """Height and width of images are multiples of it."""
    least: int
    """And at least this: a map of one row or column is a case of its own in a graph."""


class Predictor(Protocol):
    """The selected weights of a run, or those of a folder that `export --to hub` wrote, ready to predict."""

    classes: Sequence[str]
    device: Any

    def look(self, images: Sequence[Any], **options: Any) -> list[Any]:
        """For each image, uint8 [H, W, 3], what `nearsight.load` answers."""

    def portable(self) -> Portable:
        """The model for `export`, on the CPU."""

    def predict(self, pictures: Sequence[str | Path], options: Any) -> Iterator[Prediction]:
        """One by one, in the order given; folders stand for the pictures in them. Options are the kind's."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines for the user after the last prediction, such as which files were written."""


class InspectedRun(Protocol):
    """A run as `inspect` and `explore` open it, without needing its data."""

    recipe: Any
    classes: Sequence[str]
    picture_size: tuple[int, int]
    """Height and width of the pictures that its model is shown."""

    def fresh_model(self) -> Any:
        """The run's model with fresh weights, from torch's global random state."""

    def validation_images(self) -> Any:
        """The set it was validated on; its `fingerprint()` tells whether that has changed."""

    def in_turn(self, images: Any) -> Iterator[tuple[str, Any]]:
        """(name, uint8 [H, W, 3]) of those that can be read, so ordered that the first few differ."""

    def predictions(self, outputs: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
        """The model's outputs for one picture of this (height, width) as records: `label`, and perhaps `probability`
        and `box`."""


@dataclass(frozen=True)
class NoOptions:
    """For a verb without options of its own for a task."""


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A task as the verbs know it. Options are dataclasses whose fields `recipes.fields.option` made.

    Its functions import torch when they are called, and it is made without.
    """

    name: str
    help: str
    """The data, and the model that is trained on it, in a few words."""
    data: str
    """What DATA may be, for the help of `train`."""
    recipe: type
    recipes: Mapping[str, Any]
    """Named recipes, by names that no other task uses."""
    default_recipe: str
    selection: str
    """The evaluated value that decides which weights are kept, where the recipe does not choose another: the larger the
    better, but for `loss`."""
    percents: Mapping[str, str] = field(default_factory=dict)
    """Evaluated values that are percentages, and how they are written: `top1` is `top-1`."""
    eval_split: str = "val"
    """The split that `evaluate` measures where it is there and no other is asked for."""
    eval_options: type = NoOptions
    predict_options: type = NoOptions
    models: Callable[[], Sequence[str]]
    """Names of the models that can be trained for it, besides timm's."""
    recognises: Callable[[str], bool]
    """Whether a data source, never an empty one, is for this task; cheap, and False for what is not there. Later tasks
    are asked first."""
    open_task: Callable[..., Any]
    """(recipe, *, fit_batch=False) → engine.task.Task; its `recipe` is the one that is used, with the batch that
    `engine.data.check_batch` allows."""
    complete_recipe: Callable[..., Any] = lambda recipe, run: recipe
    """(recipe, run folder) → the recipe with what it takes from the run it starts from, or has on record."""
    evaluate: Callable[..., Evaluation]
    """(run, data="", *, split="", device="auto", options=None) → Evaluation.

    Without `data` on a split of the run's own data, split as for training; else on all of `data`, from which no
    validation split is taken, or on the split of it that is asked for. Values are of the selected weights.
    """
    load: Callable[..., Predictor]
    """(run or folder of `export --to hub`, device="auto") → Predictor."""
    inspect: Callable[..., InspectedRun] | None = None
    """(RunFolder) → InspectedRun; None where models of the task cannot be looked into."""


def imported(place: str) -> Callable[..., Any]:
    """The function or class at "module:name", imported when it is called, so that naming a task imports no torch."""

    def call(*arguments: Any, **named: Any) -> Any:
        module, name = place.split(":")
        return getattr(import_module(module), name)(*arguments, **named)

    return call


_KINDS: dict[str, TaskKind] = {}


def register(kind: TaskKind) -> None:
    """Make a kind of task known by its name."""
    if kind.name in task_names():
        raise ValueError(f"there is a task {kind.name!r} already")
    for other in all_kinds():
        if taken := sorted(set(kind.recipes) & set(other.recipes)):
            raise ValueError(f"{other.name} has a recipe {taken[0]!r} already; give that of {kind.name} another name")
    _KINDS[kind.name] = kind


def task_names() -> tuple[str, ...]:
    return (*TASKS, *_KINDS)


def task_kind(name: str) -> TaskKind:
    """The kind of this name."""
    if name in _KINDS:
        return _KINDS[name]
    if name not in TASKS:
        raise ValueError(
            f"there is no task {name!r}; the tasks are {', '.join(task_names())}. A task of another package is known "
            "to the program that registers it by nearsight.tasks.register"
        )
    return import_module(f"nearsight.{name}").KIND


def all_kinds() -> list[TaskKind]:
    return [task_kind(name) for name in task_names()]


def task_of_data(source: str) -> TaskKind:
    """The kind of task that a data source is for. Classification, the first, takes what no other recognises."""
    if not source:  # as for --help: nothing is loaded to look at data
        return task_kind(task_names()[0])
    kinds = all_kinds()
    if not source:  # as in a call for help; as a path it would be the current folder
        return kinds[0]
    return next((kind for kind in reversed(kinds) if kind.recognises(source)), kinds[0])


def said_by_others(task: str, source: str) -> str:
    """Which other tasks than this recognise a data source, to end the error with that it is not for this one."""
    others = [kind for kind in all_kinds() if kind.name != task]
    for kind in others:
        if kind.recognises(source):
            return f"; it is data for {kind.name}"
    return f"; nor is it recognised by another task ({', '.join(kind.name for kind in others)})"


def refuse_models_of_others(task: str, model: str) -> None:
    """Raise a ValueError if the model is for another task than this."""
    if model in task_kind(task).models():
        return
    for other in all_kinds():
        if model in other.models():
            raise ValueError(f"{model} is a model for {other.name}, not for {task}; the verb `models` lists both")
