"""Looking inside: how far heads look, whether they follow position or content, and their maps."""

from nearsight.analysis.heads import HeadProfile, head_profiles, positional_geometry
from nearsight.analysis.locality import LayerSummary, attention_record, layer_summaries, nonlocality_by_layer
from nearsight.analysis.walk import attention_maps, inspectable, is_inspectable, looking, walk

__all__ = [
    "HeadProfile",
    "LayerSummary",
    "attention_maps",
    "attention_record",
    "head_profiles",
    "inspectable",
    "is_inspectable",
    "layer_summaries",
    "looking",
    "nonlocality_by_layer",
    "positional_geometry",
    "walk",
]
