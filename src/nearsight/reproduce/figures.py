"""The curves of an experiment as one picture: accuracy over training, and where attention looks."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearsight.analysis.figures.drawing import figure_style, layer_colors
from nearsight.reproduce.evidence import Result

_PANEL = (2.6, 2.2)


def digest(results: Sequence[Result]) -> str:
    """Of the files that a figure is drawn from: it stands in the figure, and tells whether they have changed."""
    state = hashlib.sha256()
    for result in sorted(results, key=lambda one: one.path.name):
        state.update(result.path.name.encode() + result.path.read_bytes())
    return state.hexdigest()[:16]


@figure_style()
def curves_svg(title: str, results: Sequence[Result]) -> str:
    """Val accuracy of every fraction; nonlocality and gates of the attention at the largest, of the lowest seed."""
    fractions = sorted({one.run.fraction for one in results})
    looking = _with_attention(results)
    columns = max(len(fractions), len(looking), 1)
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * (1 + 2 * bool(looking))), layout="constrained")
    panels = figure.subplots(1 + 2 * bool(looking), columns, squeeze=False)
    for axes, fraction in zip(panels[0], fractions, strict=False):
        _draw_accuracy(axes, [one for one in results if one.run.fraction == fraction])
        axes.set_title(f"{100 * fraction:g} % of the images")
    panels[0][0].set_ylabel("val top-1 (%)")
    for column, result in enumerate(looking):
        _draw_layers(panels[1][column], result, "nonlocality")
        panels[1][column].set_title(f"{result.run.row.title}: distance (patches)")
        if "gates" in result.record["curve"]:
            _draw_layers(panels[2][column], result, "gates")
            panels[2][column].set_title(f"{result.run.row.title}: mean gate")
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
        axes.set_xlabel("samples seen (thousands)")
    figure.suptitle(f"{title}", fontsize=9)
    written = io.StringIO()
    metadata = {"Date": None, "Description": f"results {digest(results)}", "Creator": None}
    figure.savefig(written, format="svg", facecolor="white", metadata=metadata)
    return written.getvalue()


def _with_attention(results: Sequence[Result]) -> list[Result]:
    """One run of each row that logged where it looks, at the largest fraction."""
    largest = max(one.run.fraction for one in results)
    chosen: dict[str, Result] = {}
    for one in results:
        if one.run.fraction == largest and "nonlocality" in one.record["curve"]:
            chosen.setdefault(one.run.row.name, one)
    return list(chosen.values())


def _samples(result: Result) -> np.ndarray:
    steps = np.array(result.record["curve"]["step"])
    return result.record["samples"] * steps / steps[-1] / 1000


def _draw_accuracy(axes: Axes, results: Sequence[Result]) -> None:
    rows = list(dict.fromkeys(one.run.row.name for one in results))
    for index, row in enumerate(rows):
        own = [one for one in results if one.run.row.name == row]
        color = matplotlib.colormaps["tab10"](index % 10)
        for one in own:
            axes.plot(_samples(one), one.record["curve"]["val_top1"], color=color, linewidth=0.5, alpha=0.5)
        mean = np.mean([one.record["curve"]["val_top1"] for one in own], axis=0)
        axes.plot(_samples(own[0]), mean, color=color, label=own[0].run.row.title)
    axes.legend(fontsize=6)


def _draw_layers(axes: Axes, result: Result, what: str) -> None:
    """A line for each layer, from the start on."""
    values = np.array([result.record["start"][what], *result.record["curve"][what]])
    values = values.mean(axis=2) if what == "gates" else values
    for layer, color in enumerate(layer_colors(values.shape[1])):
        axes.plot([0, *_samples(result)], values[:, layer], color=color, label=str(layer + 1))
    axes.legend(title="layer", fontsize=5, title_fontsize=5, handlelength=1)
