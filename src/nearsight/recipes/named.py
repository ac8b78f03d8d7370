"""Recipes by name, of every task. A name is a starting point: a file and then flags may change any field."""

from __future__ import annotations

from nearsight.recipes.recipe import Recipe
from nearsight.tasks import task_kind, task_names


def recipe_names() -> list[str]:
    """Names of the recipes of all tasks."""
    return [name for task in task_names() for name in task_kind(task).recipes]


def named_recipe(name: str) -> Recipe:
    """The recipe called ``name``."""
    for task in task_names():
        if name in task_kind(task).recipes:
            return task_kind(task).recipes[name]
    raise ValueError(f"there is no recipe {name!r}; choose one of {', '.join(recipe_names())}")
