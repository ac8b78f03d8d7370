"""`nearsight models` and `nearsight recipes`: every model with its cost, every recipe with its fields, side by side."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

from nearsight.text import typed, value_words

if TYPE_CHECKING:
    from nearsight.recipes.recipe import Recipe

# What you have, what to take, and what else to know.
CHOICES = (
    (
        "1 000 to 50 000 pictures of 32 to 128 px",
        "convit_micro_64",
        "the default of `train`; _32 and _96 are the same for other image sizes",
    ),
    (
        "the same, on a CPU or to try things out",
        "convit_nano_64",
        "about a third of the parameters and operations",
    ),
    (
        "pictures of 224 px, as many as ImageNet's",
        "convit_tiny",
        "then convit_small and convit_base: more accurate in the paper, about 5 and 16 times the operations",
    ),
    (
        "a ResNet with attention instead of convolutions",
        "sasa_resnet26_convstem",
        "its stem stays convolutional, and it has the fewest operations of its family",
    ),
    (
        "pictures with boxes",
        "retinanet_sasa_resnet26_convstem_attention",
        "the default of `train` for them; retinanet_resnet26 is its convolutional counterpart",
    ),
    (
        "something to compare with",
        "deit_micro_64",
        "deit_* is the plain twin of convit_*, resnet* of sasa_resnet*",
    ),
)


def models(pattern: str = "*", /, *, img_size: int | None = None, json: Path | None = None) -> int:
    """List models: parameters and FLOPs (counted), and the papers' figures (reported).

    Parameters
    ----------
    pattern
        Names to list, as a shell pattern: `convit_*`, `*_64`.
    img_size
        Side of the square input to count at; each model's own by default.
    json
        Write the table to this file as well.
    """
    from nearsight import list_models
    from nearsight.cost import known_costs, model_cost
    from nearsight.models.sizes import REPORTED

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; `{typed('models')}` lists them all")
    console = Console()
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), caption="reported: parameters / operations / ImageNet top-1")
    table.add_column("name", overflow="fold")  # a narrow terminal breaks long names, not numbers
    for heading in ("input", "params", "operations", "reported"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = []
    known = known_costs() if img_size is None else {}
    for name in track(names, "counting", console=Console(stderr=True), transient=True, disable=img_size is None):
        row: dict[str, Any] = {"name": name, **(known.get(name) or model_cost(name, img_size))}
        paper = REPORTED.get(name)
        if paper is not None:
            row["reported"] = paper._asdict()
        rows.append(row)
        reported = f"{paper.parameters} / {paper.operations} / {paper.top1:.1f}" if paper else ""
        height, width = row["input"]
        side = f"{height}" if height == width else f"{height}×{width}"
        of_modules = row.get("module_multiply_adds")
        operations = f"{row['flops'] / 1e9:.2f}B" if of_modules is None else f"{of_modules / 1e9:.2f}G"
        table.add_row(name, side, f"{row['parameters'] / 1e6:.2f}M", operations, reported)
    console.print(table)
    console.print(
        "Counted for one image. B: multiplications and additions of the equations as written, as SASA counts. G: "
        "multiply-adds of modules without QKᵀ and AV, as ConViT counts. --json has both. Reported: the papers."
    )
    if pattern == "*":
        console.print(_which_to_take())
        console.print(f"*_distilled is for --teacher; *_plus is wider. `{typed('bench', 'models')}` measures speed.")
    if json is not None:
        json.write_text(dumps(rows, indent=2) + "\n")
        console.print(f"written to {json}")
    return 0


def _which_to_take() -> Table:
    take = Column("take", no_wrap=True)
    table = Table("you have or want", take, "", box=SIMPLE, padding=(0, 1, 0, 0), title="Which to take")
    for what, name, note in CHOICES:
        table.add_row(what, name, note)
    return table


def recipes(*names: str) -> int:
    """Show the fields in which recipes differ, or every field of those that are named.

    Parameters
    ----------
    names
        Recipes to show whole, such as `small deit`; by default all recipes, without what those of a task share.
    """
    from nearsight.recipes.files import named_recipe
    from nearsight.tasks import all_kinds

    console = Console()
    if names:
        console.print(_recipe_table({name: named_recipe(name) for name in names}, whole=True))
        return 0
    kinds = all_kinds()
    for kind in kinds:
        console.print(_recipe_table(dict(kind.recipes), whole=False))
    starts = ", ".join(f"{kind.default_recipe} ({kind.name})" for kind in kinds)
    console.print(
        f"Only fields that differ are shown; `{typed('recipes', kinds[0].default_recipe)}` shows all of one. "
        f"`{typed('train')}` starts from {starts} or from what --recipe names; every field is an option there, and may "
        "stand in a file for --config.",
        highlight=False,
    )
    return 0


def _recipe_table(chosen: dict[str, Recipe], *, whole: bool) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("field", no_wrap=True)
    for name in chosen:
        table.add_column(name, overflow="fold")
    for field in dict.fromkeys(name for recipe in chosen.values() for name in recipe.as_dict()):
        values = [getattr(recipe, field, None) for recipe in chosen.values()]
        if whole or any(value != values[0] for value in values):
            table.add_row(field, *(escape(value_words(value)) for value in values))
    return table
