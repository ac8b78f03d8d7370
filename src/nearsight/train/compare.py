"""Comparing runs: those that differ in nothing but their seed are one setting, with a mean, a spread and a test."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearsight.train.reading import run_recipe
from nearsight.train.recipe import Recipe, change_rule
from nearsight.train.runfolder import DONE, RunFolder


@dataclass(frozen=True)
class Setting:
    """Runs of one setting: what sets it apart, its seeds, and the compared value of each run."""

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


@dataclass(frozen=True)
class Comparison:
    """Settings in the order their first runs were given, the measure, and p of each against the first."""

    measure: str
    settings: tuple[Setting, ...]
    p_values: tuple[float | None, ...]


def compare_runs(runs: Sequence[str | Path], measure: str = "") -> Comparison:
    """Group finished runs by setting and compare ``measure`` (by default the test value of what selected them)."""
    if len(runs) < 2:
        raise ValueError("comparing needs at least two runs")
    recipes = [run_recipe(run) for run in runs]
    summaries = [_summary(run) for run in runs]
    measure = measure or _default_measure(summaries)
    values = [_value(run, summary, measure) for run, summary in zip(runs, summaries, strict=True)]
    groups: dict[str, list[int]] = {}
    for index, recipe in enumerate(recipes):
        groups.setdefault(json.dumps(_setting(recipe), sort_keys=True), []).append(index)
    names = _differing([recipes[members[0]] for members in groups.values()])
    settings = tuple(
        Setting(
            {name: getattr(recipes[members[0]], name) for name in names},
            tuple(str(runs[index]) for index in members),
            tuple(recipes[index].seed for index in members),
            tuple(values[index] for index in members),
        )
        for members in groups.values()
    )
    p_values = tuple(None if n == 0 else welch_p(settings[0].values, s.values) for n, s in enumerate(settings))
    return Comparison(measure, settings, p_values)


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

    from nearsight.train.plots import png

    figure = Figure(figsize=(2 + 2.4 * len(comparison.settings), 4.5), layout="constrained")
    axes = figure.subplots()
    for place, setting in enumerate(comparison.settings):
        axes.plot([place] * len(setting.values), setting.values, "o", alpha=0.6)
        axes.hlines(setting.mean, place - 0.25, place + 0.25, colors="black")
    labels = [textwrap.fill(describe_setting(setting), 30) for setting in comparison.settings]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylabel(comparison.measure)
    axes.grid(axis="y", alpha=0.3)
    return png(figure)


def describe_setting(setting: Setting) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.differs.items()) or "same settings"


def _setting(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.as_dict().items() if name != "seed" and change_rule(name) != "free"}


def _differing(recipes: Sequence[Recipe]) -> list[str]:
    first = _setting(recipes[0])
    return [name for name in first if any(_setting(recipe)[name] != first[name] for recipe in recipes[1:])]


def _summary(run: str | Path) -> dict[str, Any]:
    summary = RunFolder(run).read_json(DONE)
    if summary is None:
        raise ValueError(f"{run} is not finished; finish it with: nearsight resume {run}")
    return summary


def _default_measure(summaries: Sequence[dict[str, Any]]) -> str:
    """Accuracy or mAP on test when every run has a test split, else the value that selected the weights."""
    common = [name for name in summaries[0].get("test", {}) if all(name in s.get("test", {}) for s in summaries)]
    best_known = [name for name in ("top1", "mAP") if name in common] or common
    return f"test {best_known[0]}" if best_known else "selected on val"


def _value(run: str | Path, summary: dict[str, Any], measure: str) -> float:
    known = {f"test {name}": value for name, value in summary.get("test", {}).items()}
    if summary.get("selected"):
        known["selected on val"] = summary["selected"]["value"]
    measure = f"test {measure}" if f"test {measure}" in known else measure
    if measure not in known:
        raise ValueError(f"{run} has no measure {measure!r}; it has {', '.join(known)}")
    return float(known[measure])
