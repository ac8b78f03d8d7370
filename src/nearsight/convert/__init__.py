"""CNNs as attention and back: `to_attention` rewrites convolutions, `to_convolution` reads them from attention."""

from .attention import Conversion, converted_layers, rebuilt, stage_of, to_attention
from .convolution import LayerReading, Reading, ReadingReport, layer_inputs, to_convolution
from .report import ConversionReport, LayerReport

__all__ = [
    "Conversion",
    "ConversionReport",
    "LayerReading",
    "LayerReport",
    "Reading",
    "ReadingReport",
    "converted_layers",
    "layer_inputs",
    "rebuilt",
    "stage_of",
    "to_attention",
    "to_convolution",
]
