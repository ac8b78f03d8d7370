"""Looking inside: how far heads look, whether they follow position or content, and their maps."""

from .locality import LayerSummary, layer_summaries, nonlocality_by_layer
from .maps import attention_maps, mean_attention_maps
from .walk import inspectable, looking, walk

__all__ = [
    "LayerSummary",
    "attention_maps",
    "inspectable",
    "layer_summaries",
    "looking",
    "mean_attention_maps",
    "nonlocality_by_layer",
    "walk",
]
