"""The equations with weights: layers that read like their papers."""

from .feed_forward import FeedForward
from .local import LocalSelfAttention2d
from .positional import GatedPositionalSelfAttention, PositionalSelfAttention
from .self_attention import SelfAttention
from .stem import AttentionStem2d

__all__ = [
    "AttentionStem2d",
    "FeedForward",
    "GatedPositionalSelfAttention",
    "LocalSelfAttention2d",
    "PositionalSelfAttention",
    "SelfAttention",
]
