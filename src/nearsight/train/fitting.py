"""Sets that are smaller than a batch."""

from __future__ import annotations

from nearsight.train.recipe import Recipe


class BatchTooLargeError(ValueError):
    """A batch that the training set cannot fill, with one that it can: ``fits``."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.fits = fitting_batch(count)
        super().__init__(
            f"batch {recipe.batch} is larger than the {count} training images; use --batch {self.fits}, for example, "
            "or --batch auto"
        )


def fitting_batch(count: int) -> int:
    """A power of two that leaves an epoch of ``count`` images at least four updates, or as many as there can be."""
    return max(2, 2 ** (count.bit_length() - 3))


def check_batch(recipe: Recipe, count: int) -> None:
    """A training set fills at least one batch."""
    if count < 2:
        raise ValueError(f"there {'is one training image' if count else 'are no training images'}; two are the least")
    if count < recipe.batch:
        raise BatchTooLargeError(recipe, count)
