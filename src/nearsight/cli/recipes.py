"""`nearsight recipes`: what the named recipes set, side by side. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from nearsight.recipes.recipe import Recipe


def recipes(*names: str) -> int:
    """Show the fields in which recipes differ, or every field of those that are named.

    Parameters
    ----------
    names
        Recipes to show whole, such as `small deit`; by default all recipes, without what those of a task share.
    """
    from rich.console import Console

    from nearsight.recipes.files import named_recipe
    from nearsight.tasks import task_kind, task_names

    console = Console()
    if names:
        console.print(_table({name: named_recipe(name) for name in names}, whole=True))
        return 0
    kinds = [task_kind(task) for task in task_names()]
    for kind in kinds:
        console.print(_table(dict(kind.recipes), whole=False))
    starts = ", ".join(f"{kind.default_recipe} ({kind.name})" for kind in kinds)
    console.print(
        f"Only fields that differ are shown; `nearsight recipes {kinds[0].default_recipe}` shows all of one. "
        f"`nearsight train` starts from {starts} or from what --recipe names; every field is an option there, and may "
        "stand in a file for --config.",
        highlight=False,
    )
    return 0


def _table(chosen: dict[str, Recipe], *, whole: bool) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from nearsight.text import value_words

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("field", no_wrap=True)
    for name in chosen:
        table.add_column(name, overflow="fold")
    for field in dict.fromkeys(name for recipe in chosen.values() for name in recipe.as_dict()):
        values = [getattr(recipe, field, None) for recipe in chosen.values()]
        if whole or any(value != values[0] for value in values):
            table.add_row(field, *(escape(value_words(value)) for value in values))
    return table
