"""The equations with weights: layers that read like their papers."""

from .attention_conv import AttentionConv2d, GatedAttentionConv2d, LocalAttentionConv2d
from .local import LocalSelfAttention2d
from .positional import GatedPositionalSelfAttention, PositionalSelfAttention
from .stem import AttentionStem2d
from .transformer import FeedForward, SelfAttention

__all__ = [
    "AttentionConv2d",
    "AttentionStem2d",
    "FeedForward",
    "GatedAttentionConv2d",
    "GatedPositionalSelfAttention",
    "LocalAttentionConv2d",
    "LocalSelfAttention2d",
    "PositionalSelfAttention",
    "SelfAttention",
]
