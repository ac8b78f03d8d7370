"""Nonlocality and gates over training, from the logs of runs: ConViT's Figures 5, 6, 10, 13 and 14.

A run logs, with each evaluation, `nonlocality` (one number a layer, Eq. 8 on true activations) and, for gated models,
`gates` (σ(λ): one list of heads for each gated layer). Its report has the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nearsight.analysis.figures.drawing import INK, figure_style, head_colors, layer_colors, numbers, save
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DONE


@dataclass(frozen=True)
class Curves:
    """How the attention of one run developed."""

    name: str
    epochs: list[float]
    nonlocality: np.ndarray  # [evaluations, layers]
    gates: np.ndarray | None  # [evaluations, gated layers, heads]

    def as_data(self) -> dict[str, Any]:
        gates = None if self.gates is None else numbers(self.gates)
        return {"name": self.name, "epochs": self.epochs, "nonlocality": numbers(self.nonlocality), "gates": gates}


def read_curves(run: str | Path) -> Curves:
    """Read a run folder's evaluations. A run that logged no nonlocality is a ValueError."""
    folder = RunFolder(run)
    curves = curves_of(folder.metrics(), folder.name)
    if curves is None and folder.read_json(DONE) is None:
        raise ValueError(f"{run} has logged no nonlocality yet: wait for its first evaluation")
    if curves is None:
        model = folder.recipe().model
        raise ValueError(f"{run} is finished and logged no nonlocality: its task observes none of {model}'s layers")
    return curves


def curves_of(records: Sequence[dict[str, Any]], name: str = "") -> Curves | None:
    """The curves in the records of a run's log; None where it has none."""
    records = [record for record in records if "nonlocality" in record]
    if not records:
        return None
    gates = [record["gates"] for record in records if "gates" in record]
    return Curves(
        name=name,
        epochs=[float(record["epoch"]) for record in records],
        nonlocality=np.array([record["nonlocality"] for record in records], dtype=float),
        gates=np.array(gates, dtype=float) if len(gates) == len(records) else None,
    )


def nonlocality_figure(runs: Sequence[Curves], path: str | Path, *, title: str = "ConViT Figure 5") -> list[Path]:
    """Figures 5, 10 and 13: D_loc of each layer over training, and its numbers."""
    rows = [
        {"run": curves.name, "epoch": epoch, "layer": layer + 1, "nonlocality": float(value)}
        for curves in runs
        for epoch, values in zip(curves.epochs, curves.nonlocality, strict=True)
        for layer, value in enumerate(values)
    ]
    data = {"figure": title, "protocol": "activations", "runs": [curves.as_data() for curves in runs]}
    return save(draw_nonlocality(runs), path, data=data, rows=rows)


def gates_figure(runs: Sequence[Curves], path: str | Path, *, title: str = "ConViT Figure 6") -> list[Path]:
    """Figures 6 and 14: σ(λ) of each head over training, and its numbers."""
    figure = draw_gates(runs)
    rows = [
        {"run": curves.name, "epoch": epoch, "layer": layer + 1, "head": head + 1, "gate_value": float(value)}
        for curves in runs
        for epoch, layers in zip(curves.epochs, _gates(curves), strict=True)
        for layer, heads in enumerate(layers)
        for head, value in enumerate(heads)
    ]
    return save(figure, path, data={"figure": title, "runs": [curves.as_data() for curves in runs]}, rows=rows)


@figure_style()
def draw_nonlocality(runs: Sequence[Curves], panel: tuple[float, float] = (2.9, 2.5)) -> Figure:
    """One panel (width, height in inches) for each run, one line for each layer."""
    figure = Figure(figsize=(panel[0] * len(runs) + 0.9, panel[1]), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, curves in zip(panels, runs, strict=True):
        for layer, color in enumerate(layer_colors(curves.nonlocality.shape[1])):
            values = curves.nonlocality[:, layer]
            axes.plot(curves.epochs, values, color=color, label=str(layer + 1), **_marks(curves))
        axes.set_title(curves.name)
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("nonlocality (patches)")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, title="layer", loc="outside right center", fontsize=7, handlelength=1.2)
    return figure


@figure_style()
def draw_gates(runs: Sequence[Curves], panel: tuple[float, float] = (1.45, 1.5)) -> Figure:
    """One panel (width, height in inches) for each gated layer, a line for each head, black their mean."""
    gated = [_gates(curves) for curves in runs]
    columns = max(gates.shape[1] for gates in gated)
    per_line = columns if columns <= 6 else -(-columns // 2)
    lines = [-(-gates.shape[1] // per_line) for gates in gated]
    size = (panel[0] * per_line + 0.5, panel[1] * sum(lines) + 0.3 * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(runs), 1, height_ratios=lines, squeeze=False)[:, 0]
    for part, num_lines, curves, gates in zip(parts, lines, runs, gated, strict=True):
        panels = part.subplots(num_lines, per_line, sharex=True, sharey=True, squeeze=False)
        if curves.name:
            part.suptitle(curves.name, fontsize=9)
        _draw_gates(panels, curves, gates)
    return figure


def _gates(curves: Curves) -> np.ndarray:
    if curves.gates is None:
        raise ValueError(f"{curves.name} has no gates: Figures 6 and 14 need a ConViT (GPSA blocks)")
    return curves.gates


def _draw_gates(panels: np.ndarray, curves: Curves, gates: np.ndarray) -> None:
    colors = head_colors(gates.shape[2])
    for layer, axes in enumerate(panels.flat):
        if layer >= gates.shape[1]:
            axes.set_visible(False)
            continue
        for head, color in enumerate(colors):
            axes.plot(curves.epochs, gates[:, layer, head], color=color, linewidth=0.8, **_marks(curves))
        axes.plot(curves.epochs, gates[:, layer].mean(axis=1), color=INK, linewidth=1.8, **_marks(curves))
        axes.set_title(f"layer {layer + 1}")
        axes.set_ylim(0, 1)
    for axes in panels[:, 0]:
        axes.set_ylabel("σ(λ)")
    for axes in panels[-1]:
        axes.set_xlabel("epoch")


def _marks(curves: Curves) -> dict[str, Any]:
    """Points where there are too few evaluations for a line to be seen."""
    return {"marker": "o", "markersize": 2.5} if len(curves.epochs) < 4 else {}
