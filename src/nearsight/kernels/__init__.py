"""The equations of `functional`, faster, behind one dispatch; `backend=` forces one. Attention takes q, k, v packed."""

from .dispatch import Verdict
from .gpsa import explain_gated_positional_attention, gated_positional_attention
from .linear_layer import explain_linear, linear
from .local import explain_local_attention, local_attention
from .stem import block_attention, project_blocks, spatially_aware_values
from .tokens import token_attention

__all__ = [
    "Verdict",
    "block_attention",
    "explain_gated_positional_attention",
    "explain_linear",
    "explain_local_attention",
    "gated_positional_attention",
    "linear",
    "local_attention",
    "project_blocks",
    "spatially_aware_values",
    "token_attention",
]
