"""What each evaluation logs of a model's inner life: the nonlocality of Figure 5 and the gates of Figure 6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from nearsight.analysis import layer_summaries
from nearsight.analysis.locality import LayerSummary
from nearsight.analysis.walk import inspectable
from nearsight.classification.data import ImageData
from nearsight.engine.task import ProcessContext

_IMAGES = 32


def first_images(data: ImageData, split: str, count: int, context: ProcessContext) -> Tensor:
    """The first normalised images of a split, the same at every call."""
    alone = ProcessContext(context.device, precision=context.precision)
    return next(iter(data.eval_batches(split, alone))).images[:count]


def summaries_or_none(model: nn.Module, data: ImageData, context: ProcessContext) -> list[LayerSummary]:
    """A summary of every attention layer on the first validation images; none for a model without such layers."""
    try:
        inspectable(model)
    except ValueError:
        return []
    return layer_summaries(model, first_images(data, "val", _IMAGES, context))


def look_inside(model: nn.Module, data: ImageData, context: ProcessContext) -> Iterator[tuple[str, Any]]:
    """``nonlocality``: one number a layer, in patches. ``gates``: σ(λ), one list of heads for each gated layer."""
    summaries = summaries_or_none(model, data, context)
    if summaries:
        yield "nonlocality", [round(summary.mean_nonlocality, 5) for summary in summaries]
    gates = [[round(value, 5) for value in s.gate_values] for s in summaries if s.gate_values is not None]
    if gates:
        yield "gates", gates
