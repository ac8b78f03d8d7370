"""Plots as PNG bytes, without pyplot and its global state."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from nearsight.analysis.figures.drawing import box, figure_style
from nearsight.reports.words import measure_words
from nearsight.text import printable


class Mark(NamedTuple):
    """A square to draw on a picture, in its pixels."""

    top: float
    left: float
    side: float


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return buffer.getvalue()


@figure_style()
def curves(records: Sequence[dict[str, Any]], selection: str) -> bytes:
    """Losses, the selected measure on val, and the learning rate, over epochs."""
    training = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "eval"]
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    losses, measures, rates = figure.subplots(1, 3)
    dot = "." if len(training) == 1 else None  # a line through one point shows nothing
    losses.plot(_epochs(training), _values(training, "loss"), label="train", linewidth=0.8, marker=dot)
    for name, axes in (("loss", losses), (selection, measures)):
        for prefix, label in (("", "val"), ("ema_", "val, averaged weights")):
            key = f"{prefix}val_{name}"
            if any(key in record for record in evaluations):
                axes.plot(_epochs(evaluations), _values(evaluations, key), label=label, marker=".", markersize=3)
        axes.set_title(measure_words(name))
        axes.legend()
    rates.plot(_epochs(training), _values(training, "lr"), marker=dot)
    rates.set_title("learning rate")
    for axes in (losses, measures, rates):
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    return png(figure)


@figure_style()
def side_by_side(runs: Mapping[str, Sequence[dict[str, Any]]], measure: str) -> bytes:
    """Training loss and a measure on val (such as ``top1``) of several runs, over epochs."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    losses, measures = figure.subplots(1, 2)
    for name, records in runs.items():
        training = [record for record in records if record["kind"] == "train"]
        evaluations = [record for record in records if record["kind"] == "eval"]
        losses.plot(_epochs(training), _values(training, "loss"), label=name, linewidth=0.9)
        measures.plot(_epochs(evaluations), _values(evaluations, f"val_{measure}"), label=name, marker=".")
    for axes, title in ((losses, "training loss"), (measures, f"val {measure_words(measure)}")):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.legend()
        axes.grid(alpha=0.3)
    return png(figure)


@figure_style()
def confusion_matrix(counts: np.ndarray, classes: Sequence[str]) -> bytes:
    """Rows are true classes, columns predictions; shares of the row, with numbers where they can be read."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(12.0, 2.5 + 0.42 * len(classes))
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(classes) <= 40:
        names = [_plain(name) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90)
        axes.set_yticks(range(len(classes)), names)
    if len(classes) <= 20:
        for (row, col), count in np.ndenumerate(counts):
            if count:
                color = "white" if share[row, col] > 0.5 else "black"
                axes.text(col, row, str(int(count)), ha="center", va="center", fontsize=7, color=color)
    return png(figure)


@figure_style()
def picture_grid(
    pictures: Sequence[np.ndarray], titles: Sequence[str], columns: int = 6, marks: Sequence[Mark] = ()
) -> bytes:
    """Images [H, W, 3] or maps [H, W] with a title each, and a red square each where ``marks`` are given."""
    rows = math.ceil(len(pictures) / columns)
    figure = Figure(figsize=(1.9 * columns, 2.15 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels:
        axes.set_axis_off()
    for axes, picture, title in zip(panels, pictures, titles, strict=False):
        axes.imshow(picture, cmap="viridis", interpolation="nearest")
        axes.set_title("\n".join(_plain(line) for line in title.split("\n")), fontsize=7)
    for axes, mark in zip(panels, marks, strict=False):
        box(axes, mark.top, mark.left, mark.side, mark.side, linewidth=1.6)
    return png(figure)


def _epochs(records: Sequence[dict[str, Any]]) -> list[float]:
    return [record["epoch"] for record in records]


def _values(records: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [float(record.get(name, "nan")) for record in records]


def _plain(text: str) -> str:
    """A class name as matplotlib should draw it: no formulas, no control characters, not endless."""
    return printable(text, 40).replace("$", r"\$")
