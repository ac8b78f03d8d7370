"""Comparing runs: those that differ in nothing but their seed are one setting, with a mean, a spread and a test."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearsight.images.fingerprints import same_data
from nearsight.recipes.recipe import Recipe
from nearsight.reports.words import measure_words
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DATA, DONE, NOT_READ, TEACHER
from nearsight.text import typed, value_words

_MOST_IN_A_LABEL = 3
_OPTION = "model_options."
_SELECTED = "selected on val"


@dataclass(frozen=True)
class Setting:
    """Runs of one setting: what sets it apart, its seeds, and the compared value of each run.

    ``differs`` has the fields in which the compared settings differ, a model's options one by one
    (``model_options.width``); None is an option that this setting leaves to its model.
    """

    differs: dict[str, Any]
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def shown(self) -> dict[str, Any]:
        """The differences that a label has room for."""
        return dict(list(self.differs.items())[:_MOST_IN_A_LABEL])


@dataclass(frozen=True)
class Comparison:
    """Settings in the order their first runs were given, the measure and its quantity, p of each against the first."""

    measure: str
    quantity: str
    settings: tuple[Setting, ...]
    p_values: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    """Which runs were left out and why, and whose weights are no longer there."""

    @property
    def title(self) -> str:
        """The measure and its unit: ``test top-1 (%)``."""
        split = self.measure.removesuffix(self.quantity)
        return f"{split.rstrip()} {measure_words(self.quantity)}".lstrip()


def compare_runs(runs: Sequence[str | Path], measure: str = "") -> Comparison:
    """Group finished runs by setting and compare ``measure`` (by default the test value of what selected them)."""
    if len(runs) < 2:
        raise ValueError("comparing needs at least two runs")
    _check_distinct(runs)
    recipes = [RunFolder(run).recipe() for run in runs]
    if len({recipe.task for recipe in recipes}) > 1:
        told = ", ".join(f"{run} is {recipe.task}" for run, recipe in zip(runs, recipes, strict=True))
        raise ValueError(f"runs of different tasks have no measure in common: {told}")
    summaries = [_summary(run) for run in runs]
    described = [_setting(recipe, data) for recipe, data in zip(recipes, _data_names(runs, recipes), strict=True)]
    selection = recipes[0].selection
    measure = measure or _default_measure(summaries, selection)
    if measure == _SELECTED and len(measures := {recipe.selection for recipe in recipes}) > 1:
        raise ValueError(f"the runs' weights are selected by different measures on val: {', '.join(sorted(measures))}")
    values = [_value(run, summary, measure) for run, summary in zip(runs, summaries, strict=True)]
    groups: dict[str, dict[int, int]] = {}  # by setting: seed → index of its run
    notes = []
    for index, (setting, recipe) in enumerate(zip(described, recipes, strict=True)):
        seeds = groups.setdefault(json.dumps(setting, sort_keys=True), {})
        if recipe.seed in seeds:
            notes.append(f"{runs[index]} is left out: it has the settings and the seed of {runs[seeds[recipe.seed]]}")
        seeds.setdefault(recipe.seed, index)
    members_of = [tuple(seeds.values()) for seeds in groups.values()]
    names = _differing([described[members[0]] for members in members_of])
    notes += [doubt for run in runs if (doubt := _doubt(run))]
    settings = tuple(
        Setting(
            {name: described[members[0]].get(name) for name in names},
            tuple(str(runs[index]) for index in members),
            tuple(recipes[index].seed for index in members),
            tuple(values[index] for index in members),
        )
        for members in members_of
    )
    p_values = tuple(None if n == 0 else welch_p(settings[0].values, s.values) for n, s in enumerate(settings))
    quantity = selection if measure == _SELECTED else measure.removeprefix("test ")
    return Comparison(measure, quantity, settings, p_values, tuple(notes))


def welch_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t-test; None with fewer than two values a side or no spread at all."""
    if min(len(first), len(second)) < 2:
        return None
    errors = [statistics.variance(values) / len(values) for values in (first, second)]
    if sum(errors) == 0:
        return None
    t = (statistics.fmean(first) - statistics.fmean(second)) / math.sqrt(sum(errors))
    counts = (len(first), len(second))
    freedom = sum(errors) ** 2 / sum(e**2 / (n - 1) for e, n in zip(errors, counts, strict=True))
    from mpmath import betainc  # comes with torch (through sympy)

    return float(betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True))


def comparison_plot(comparison: Comparison) -> bytes:
    """Every run as a dot, every setting's mean as a bar."""
    from matplotlib.figure import Figure

    from nearsight.reports.plots import png

    figure = Figure(figsize=(2 + 2.4 * len(comparison.settings), 4.5), layout="constrained")
    axes = figure.subplots()
    for place, setting in enumerate(comparison.settings):
        axes.plot([place] * len(setting.values), setting.values, "o", alpha=0.6)
        axes.hlines(setting.mean, place - 0.25, place + 0.25, colors="black")
    labels = [textwrap.fill(describe_setting(setting), 30) for setting in comparison.settings]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylabel(comparison.title)
    axes.grid(axis="y", alpha=0.3)
    return png(figure)


def describe_setting(setting: Setting) -> str:
    """What sets a setting apart, in a few words; how many differences there was no room for."""
    parts = [_difference(name, value) for name, value in setting.shown.items() if value is not None]
    # With nothing of its own to show, what others set is what is said.
    parts = parts or [_difference(name, "the model's own") for name in setting.shown] or ["same settings"]
    more = len(setting.differs) - len(setting.shown)
    return ", ".join([*parts, f"{more} more"] if more else parts)


def _difference(name: str, value: Any) -> str:
    if name == "model":
        return str(value)
    return f"{name.removeprefix(_OPTION)}={value_words(value) or 'none'}"


def _check_distinct(runs: Sequence[str | Path]) -> None:
    """One run counted twice would make a spread smaller and a difference surer than they are."""
    places = [Path(run).resolve() for run in runs]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise ValueError(f"{runs[index]} is given twice; name each run once")


def _data_names(runs: Sequence[str | Path], recipes: Sequence[Recipe]) -> Iterator[str]:
    """What each run learned from: the same name for the same fingerprint, wherever it lay, and only for that."""
    named: list[tuple[dict[str, Any], str]] = []
    taken: list[str] = []
    for run, recipe in zip(runs, recipes, strict=True):
        record = RunFolder(run).read_json(DATA) or {}
        name = next((name for known, name in named if _same_record(known, record)), "")
        if not name:
            count = 1 + sum(other == recipe.data for other in taken)
            taken.append(recipe.data)
            name = recipe.data if count == 1 else f"{recipe.data} (changed, {count})"
            named.append((record, name))
        yield name


def _same_record(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two records are of the same data; earlier ones have less in them."""
    names = (one.keys() | other.keys()) - {NOT_READ}
    later = {TEACHER} - (one.keys() & other.keys())
    return all(same_data(one.get(name), other.get(name)) for name in names - later)


def _setting(recipe: Recipe, data: str) -> dict[str, Any]:
    """What makes a setting: the data, and every field but the seed and those that cannot change a result."""
    fields = {name: value for name, value in recipe.as_dict().items() if recipe.is_compared(name)}
    fields["data"] = data
    options = {f"{_OPTION}{name}": value for name, value in fields.pop("model_options").items()}
    # First the fields by which people tell models apart.
    return {"model": fields.pop("model"), **options, **fields}


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if any(setting.get(name) != settings[0].get(name) for setting in settings[1:])]


def _summary(run: str | Path) -> dict[str, Any]:
    summary = RunFolder(run).read_json(DONE)
    if summary is None:
        raise ValueError(f"{run} is not finished; finish it with: {typed('resume', run)}")
    return summary


def _doubt(run: str | Path) -> str:
    """A sentence where the weights that a run's figures are of cannot be read any more."""
    folder = RunFolder(run)
    if not folder.checkpoints().steps():
        return ""  # a record without weights, as people hand it on
    try:
        folder.selected()
    except DiskError as error:
        return f"{run}: its figures are as they were measured at its end, of weights that are lost ({error})"
    return ""


def _default_measure(summaries: Sequence[dict[str, Any]], selection: str) -> str:
    """What selects weights, on test when every run has a test split, else on val as it selected them."""
    common = [name for name in summaries[0].get("test", {}) if all(name in s.get("test", {}) for s in summaries)]
    if not common:
        return _SELECTED
    return f"test {selection if selection in common else common[0]}"


def _value(run: str | Path, summary: dict[str, Any], measure: str) -> float:
    known = {f"test {name}": value for name, value in summary.get("test", {}).items()}
    if summary.get("selected"):
        known[_SELECTED] = summary["selected"]["value"]
    measure = f"test {measure}" if f"test {measure}" in known else measure
    if measure not in known:
        raise ValueError(f"{run} has no measure {measure!r}; it has {', '.join(known)}")
    return float(known[measure])
