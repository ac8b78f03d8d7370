"""The recipe of a regression: what every task has, and one field of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nearsight.recipes.fields import TINY, option
from nearsight.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ValueFields:
    """The numbers to predict."""

    value_scale: float = option(1.0, "values are learned divided by this, best their spread", change="never", low=TINY)


@dataclass(frozen=True, kw_only=True)
class RegressionRecipe(ValueFields, Recipe):
    """One run of a regression, completely."""

    task: ClassVar[str] = "regression"
    set_elsewhere: ClassVar[dict[str, str]] = {**Recipe.set_elsewhere, "img_size": "--image-size sets it"}


RECIPES = {
    "regression_small": RegressionRecipe(
        model="convit_nano_32", image_size=32, epochs=30.0, batch=64, lr=1e-3, lr_batch=64, repeats=1, drop_path=0.0
    )
}
