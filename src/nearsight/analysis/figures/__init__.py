"""The papers' figures, each drawn from a model or a run, with its numbers beside it."""

from nearsight.analysis.figures.attention import attention_figure, averaged_figure, figure3
from nearsight.analysis.figures.training import gates_figure, nonlocality_figure
from nearsight.analysis.figures.windows import relative_logits_figure, window_attention_figure

__all__ = [
    "attention_figure",
    "averaged_figure",
    "figure3",
    "gates_figure",
    "nonlocality_figure",
    "relative_logits_figure",
    "window_attention_figure",
]
