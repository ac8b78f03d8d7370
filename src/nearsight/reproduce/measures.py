"""What a claim may ask of a run's curves, each one number: from what evaluations logged, and from the start.

Layers count from the first block on. Gates are σ(λ), the share of attention that a head gives to position; they are
there for gated layers alone. Nonlocality is ConViT's Eq. 8, in patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Record = Mapping[str, Any]


def _gates(record: Record) -> np.ndarray:
    """[start and evaluations, gated layers]: the mean over heads."""
    return np.array([record["start"]["gates"], *record["curve"]["gates"]]).mean(axis=2)


def _distances(record: Record) -> np.ndarray:
    """[start and evaluations, layers]."""
    return np.array([record["start"]["nonlocality"], *record["curve"]["nonlocality"]])


def _gated(record: Record) -> int:
    return len(record["start"].get("gates", ()))


def early(record: Record) -> float:
    """Val accuracy after a fifth of the run."""
    accuracies = record["curve"]["val_top1"]
    return accuracies[max(0, round(len(accuracies) / 5) - 1)]


def gates_change_most(record: Record) -> float:
    """Change of the mean gate from start to end in the layer where it fell least: below 0, it fell in every layer."""
    gates = _gates(record)
    return float((gates[-1] - gates[0]).max())


def gates_change(record: Record) -> float:
    """Change of the mean gate from start to end, all gated layers together."""
    gates = _gates(record)
    return float((gates[-1] - gates[0]).mean())


def gates_end_last(record: Record) -> float:
    """Mean gate of the last gated layer at the end: near 0, position is ignored."""
    return float(_gates(record)[-1, -1])


def gates_end_first(record: Record) -> float:
    """Mean gate of the first layer at the end."""
    return float(_gates(record)[-1, 0])


def positional_layers(record: Record) -> float:
    """How many gated layers end with a mean gate above a tenth."""
    return float((_gates(record)[-1] > 0.1).sum())


def escape_least(record: Record) -> float:
    """Growth of nonlocality from start to end in the gated layer where it grew least: above 0, all grew."""
    distances = _distances(record)[:, : _gated(record)]
    return float((distances[-1] - distances[0]).min())


def escape_first(record: Record) -> float:
    """Growth of the first layer's nonlocality."""
    distances = _distances(record)
    return float(distances[-1, 0] - distances[0, 0])


def escape_second(record: Record) -> float:
    """Growth of the second layer's nonlocality."""
    distances = _distances(record)
    return float(distances[-1, 1] - distances[0, 1])


def fall_least(record: Record) -> float:
    """Nonlocality in the first third of the run less that at the start, in the layer where it fell least."""
    distances = _distances(record)
    third = distances[1 : 1 + max(1, len(distances) // 3)].min(axis=0)
    return float((third - distances[0]).max())


def rise_last(record: Record) -> float:
    """Nonlocality of the last layer at the end, above its lowest."""
    last = _distances(record)[:, -1]
    return float(last[-1] - last.min())


def distance_end(record: Record) -> float:
    """Nonlocality at the end, mean of all layers but the last two, which are plain in every model."""
    return float(_distances(record)[-1, :-2].mean())


def distance_first(record: Record) -> float:
    """Nonlocality of the first layer at the end."""
    return float(_distances(record)[-1, 0])


def distance_last(record: Record) -> float:
    """Nonlocality of the last layer at the end."""
    return float(_distances(record)[-1, -1])


MEASURES: dict[str, Callable[[Record], float]] = {
    measure.__name__: measure
    for measure in (
        early, gates_change_most, gates_change, gates_end_last, gates_end_first, positional_layers, escape_least,
        escape_first, escape_second, fall_least, rise_last, distance_end, distance_first, distance_last,
    )
}  # fmt: skip
