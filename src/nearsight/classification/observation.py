"""What each evaluation logs about attention: the nonlocality of ConViT's Figure 5 and the gates of its Figure 6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from nearsight.analysis import inspectable, layer_summaries
from nearsight.classification.data import ImageData
from nearsight.engine.task import ProcessContext

_IMAGES = 32


def observe_attention(model: nn.Module, data: ImageData, context: ProcessContext) -> Iterator[tuple[str, Any]]:
    """On the first validation images: ``nonlocality``, one number a layer, in patches; ``gates``, σ(λ), one list of
    heads for each gated layer. Nothing for a model without attention layers that analysis knows."""
    try:
        inspectable(model)
    except ValueError:
        return
    alone = ProcessContext(context.device, precision=context.precision)
    images = next(iter(data.eval_batches("val", alone))).images[:_IMAGES]
    summaries = layer_summaries(model, images)
    yield "nonlocality", [round(summary.mean_nonlocality, 5) for summary in summaries]
    gates = [[round(value, 5) for value in s.gate_values] for s in summaries if s.gate_values is not None]
    if gates:
        yield "gates", gates
