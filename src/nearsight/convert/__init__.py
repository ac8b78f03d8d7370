"""CNNs as attention and back: `to_attention` rewrites convolutions, `to_convolution` reads them from attention."""

from .attention import Conversion, converted_layers, stage_of, to_attention
from .report import ConversionReport, LayerReport

__all__ = ["Conversion", "ConversionReport", "LayerReport", "converted_layers", "stage_of", "to_attention"]
