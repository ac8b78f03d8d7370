"""Sets that are small: training sets that cannot fill a batch, validation sets that cannot tell models apart."""

from __future__ import annotations

import math

import numpy as np

from nearsight.images.imageset import ImageSet
from nearsight.recipes.recipe import Recipe

_FEW = 100
_UPDATES = 4  # in an epoch
_NAMED = 5


class BatchTooLargeError(ValueError):
    """A batch that the training set cannot fill, with one that it can: ``fits``."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.fits = fitting_batch(count)
        super().__init__(
            f"batch {recipe.batch} is larger than the {count} training images; use --batch {self.fits}, for example, "
            "or --batch auto"
        )


def fitting_batch(count: int) -> int:
    """A power of two that leaves an epoch of ``count`` images ``_UPDATES`` or more, or as many as there can be."""
    return max(2, 2 ** (count.bit_length() - 3))


def check_batch(recipe: Recipe, count: int) -> None:
    """A training set fills at least one batch; with ``batch_auto`` four, where a smaller batch can bring that about."""
    if count < 2:
        raise ValueError(f"there {'is one training image' if count else 'are no training images'}; two are the least")
    few = recipe.batch_auto and count < _UPDATES * recipe.batch and fitting_batch(count) < recipe.batch
    if count < recipe.batch or few:
        raise BatchTooLargeError(recipe, count)


def validation_warning(images: ImageSet) -> str | None:
    """A sentence where a validation set is small, or lacks a class: how far its accuracy can be trusted."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    lacking = [name for name, count in zip(images.classes, counts, strict=True) if not count]
    if len(images) >= _FEW and not lacking:
        return None
    shown = ", ".join(lacking[:_NAMED]) + (f" and {len(lacking) - _NAMED} more classes" if lacking[_NAMED:] else "")
    # The error of a share p of n images is √(p(1 − p)/n), largest at one half.
    error = 100 * math.sqrt(0.25 / len(images))
    return (
        f"warning: {len(images)} validation images{f', none of {shown}' if lacking else ''}: accuracy on them has a "
        f"standard error of up to {error:.1f} points, and smaller differences are chance; add images, or raise "
        "--val-fraction where they are taken from the training set"
    )
