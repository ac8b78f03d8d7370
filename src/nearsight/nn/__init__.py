"""The equations with weights: layers that read like their papers."""

from .local import LocalSelfAttention2d
from .positional import GatedPositionalSelfAttention, PositionalSelfAttention
from .self_attention import SelfAttention
from .stem import AttentionStem2d

__all__ = [
    "AttentionStem2d",
    "GatedPositionalSelfAttention",
    "LocalSelfAttention2d",
    "PositionalSelfAttention",
    "SelfAttention",
]
