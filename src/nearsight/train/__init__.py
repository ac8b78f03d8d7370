"""Learning: from a recipe and a folder to a trained model, killed at any instant and resumed to the same result.

Names that need torch are imported when first used, so that the command line can show its help at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearsight.train.recipe import Recipe
from nearsight.train.recipe_file import resolve_recipe
from nearsight.train.recipes import RECIPES

if TYPE_CHECKING:
    from nearsight.train.compare import compare_runs
    from nearsight.train.reading import evaluate_run, load_classifier, predict_images
    from nearsight.train.runfolder import RunFolder
    from nearsight.train.runner import train
    from nearsight.train.task import Task

_NEEDS_TORCH = {
    "RunFolder": "runfolder",
    "Task": "task",
    "compare_runs": "compare",
    "evaluate_run": "reading",
    "load_classifier": "reading",
    "predict_images": "reading",
    "train": "runner",
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "RECIPES",
    "Recipe",
    "RunFolder",
    "Task",
    "compare_runs",
    "evaluate_run",
    "load_classifier",
    "predict_images",
    "resolve_recipe",
    "train",
]
