"""Settings and measures as people read them, in reports, comparisons and help. Imports no torch."""

from __future__ import annotations

from nearsight.recipes.recipe import Recipe
from nearsight.tasks import all_kinds
from nearsight.text import value_words


def _percents() -> dict[str, str]:
    """The measures of all tasks that are percentages, as they are written."""
    return {name: written for kind in all_kinds() for name, written in kind.percents.items()}


def measure_words(name: str) -> str:
    """The name of a measure, with its unit where it has one: ``top1`` is ``top-1 (%)``."""
    percents = _percents()
    return f"{percents[name]} (%)" if name in percents else name


def decimals(name: str) -> int:
    """How many digits of a measure are worth reading after the point."""
    return 1 if name in _percents() else 3


def measured(name: str, value: float) -> str:
    """A measure by name, rounded, with its unit where it has one."""
    percents = _percents()
    rounded = str(value) if isinstance(value, int) else f"{value:.{decimals(name)}f}"
    return f"{percents[name]} {rounded} %" if name in percents else f"{name} {rounded}"


def weights_words(weights: str) -> str:
    """Which of a run's two sets of weights was selected."""
    return "averaged weights" if weights == "ema" else "weights as trained"


def model_words(recipe: Recipe) -> str:
    """The model by name, what was changed in it, and the size of its images."""
    said = f" ({value_words(recipe.stated_options)})" if recipe.stated_options else ""
    return f"{recipe.model}{said} at {recipe.image_size} px"
