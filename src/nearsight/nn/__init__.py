"""The equations with weights: layers that read like their papers."""

from .local import LocalSelfAttention2d
from .positional import GatedPositionalSelfAttention, PositionalSelfAttention
from .stem import AttentionStem2d
from .transformer import FeedForward, SelfAttention

__all__ = [
    "AttentionStem2d",
    "FeedForward",
    "GatedPositionalSelfAttention",
    "LocalSelfAttention2d",
    "PositionalSelfAttention",
    "SelfAttention",
]
