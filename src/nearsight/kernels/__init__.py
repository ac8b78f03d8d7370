"""The equations of `functional`, faster: the same signatures behind one dispatch, `backend=` forces an implementation."""

from .dispatch import Verdict
from .gated import explain_gated_positional_attention, gated_positional_attention
from .local import explain_local_attention, local_attention
from .stem import spatially_aware_values

__all__ = [
    "Verdict",
    "explain_gated_positional_attention",
    "explain_local_attention",
    "gated_positional_attention",
    "local_attention",
    "spatially_aware_values",
]
