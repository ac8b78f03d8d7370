"""The papers' equations in plain PyTorch: no state, no classes, any device, dtype and H×W."""

from .attention import (
    attention_weights,
    convolutional_v_pos,
    gated_positional_attention,
    gated_positional_attention_weights,
    nonlocality,
    positional_axis_logits,
    positional_axis_weights,
    positional_logits,
    positional_self_attention_weights,
    positional_weights,
    self_attention,
)
from .convolution import AttentionParts, attention_from_convolution, convolution_from_attention
from .impulse import impulse_maps, impulse_projections
from .local import (
    Border,
    apply_local_weights,
    local_attention,
    local_attention_weights,
    query_key_value,
    relative_logits,
    windows,
    windows_inside,
)
from .stem import (
    apply_block_weights,
    block_attention,
    block_attention_weights,
    spatially_aware_values,
    value_mixture,
)
from .taps import ConvAxes, ConvAxis, tap_axis_weights, tap_window_weights, tap_windows

__all__ = [
    "AttentionParts",
    "Border",
    "ConvAxes",
    "ConvAxis",
    "apply_block_weights",
    "apply_local_weights",
    "attention_from_convolution",
    "attention_weights",
    "block_attention",
    "block_attention_weights",
    "convolution_from_attention",
    "convolutional_v_pos",
    "gated_positional_attention",
    "gated_positional_attention_weights",
    "impulse_maps",
    "impulse_projections",
    "local_attention",
    "local_attention_weights",
    "nonlocality",
    "positional_axis_logits",
    "positional_axis_weights",
    "positional_logits",
    "positional_self_attention_weights",
    "positional_weights",
    "query_key_value",
    "relative_logits",
    "self_attention",
    "spatially_aware_values",
    "tap_axis_weights",
    "tap_window_weights",
    "tap_windows",
    "value_mixture",
    "windows",
    "windows_inside",
]
