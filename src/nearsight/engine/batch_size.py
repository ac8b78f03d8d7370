"""The batch: whether a training set fills it, and how processes and micro-batches share it."""

from __future__ import annotations

from nearsight.engine.distributed import World
from nearsight.recipes.recipe import R, Recipe

_UPDATES = 4  # in an epoch


def suggested_batch(count: int) -> int:
    """A power of two that leaves an epoch of ``count`` images ``_UPDATES`` or more, or as many as there can be."""
    return max(2, 2 ** (count.bit_length() - 3))


def check_batch(recipe: R, count: int, *, fit: bool = False) -> R:
    """``recipe``, once it is known that ``count`` training images fill its batch.

    With ``fit``, or ``batch_auto``, a set that does not fill four batches gets smaller ones.
    """
    if count < 2:
        raise ValueError(f"there {'is one training image' if count else 'are no training images'}; two are the least")
    suggested = suggested_batch(count)
    if (fit or recipe.batch_auto) and count < _UPDATES * recipe.batch and suggested < recipe.batch:
        return recipe.with_changes(batch=suggested)
    if count < recipe.batch:
        raise ValueError(
            f"batch {recipe.batch} is larger than the {count} training images; use --batch {suggested}, for example, "
            "or --batch auto"
        )
    return recipe


def cut_batch(recipe: Recipe, world: World, multiple: int) -> tuple[int, int]:
    """(micro-batch, micro-batches per update) of one process, or an error that lists what would fit."""
    if recipe.batch % (world.size * multiple):
        fits = [n for n in range(1, recipe.batch + 1) if recipe.batch % (n * multiple) == 0]
        shown = ", ".join(str(n) for n in fits[:12])
        whole = world.size * multiple
        groups = f" in groups of {multiple}, which mixup and cutmix need" if multiple > 1 else ""
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared by {world.size} processes{groups}; use --batch "
            f"{-(-recipe.batch // whole) * whole}, or a number of processes that fits: {shown}"
        )
    share = recipe.batch // world.size
    micro = recipe.micro_batch or share
    if micro > share or share % micro or micro % multiple:
        fits = [n for n in range(multiple, share + 1, multiple) if share % n == 0]
        raise ValueError(
            f"micro_batch {micro} does not fit the {share} images of each process; "
            f"sizes that fit: {', '.join(str(n) for n in fits)}"
        )
    return micro, share // micro


def smaller_micro_batch(micro: int, multiple: int) -> int | None:
    """The largest micro-batch below ``micro`` that divides it in whole groups; None when there is none."""
    parts = next((n for n in range(2, micro + 1) if micro % n == 0 and (micro // n) % multiple == 0), None)
    return micro // parts if parts else None
