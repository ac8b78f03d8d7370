"""The two small networks that read every level of the pyramid: one tells classes, one corrects boxes."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from nearsight.detection.pyramid import Norm, attention_mixer, conv_mixer, mix, no_norm

Kind = Literal["conv", "attention"]
PRIOR = 0.01  # what the class head believes of every anchor at first: focal loss needs a start among many backgrounds


class DetectionHead(nn.Module):
    """`depth` 3×3s with ReLUs, then a prediction of `num_outputs` for each anchor; the weights serve all levels.

    kind "conv": 3×3 convolutions, the prediction is one too. kind "attention": every 3×3 is local attention, also the
    one that predicted (hence one layer more), and a pointwise convolution ends the head: it mixes the attention's heads
    and makes the outputs. With five attention layers SASA's Table 2 has its parameters; with four, 0.4 M too few.
    Around each attention goes a `shortcut`, which the paper does not state and which has no parameters.
    """

    def __init__(
        self,
        channels: int,
        num_anchors: int,
        num_outputs: int,
        *,
        kind: Kind = "conv",
        depth: int = 4,
        attention: dict | None = None,
        norm: Norm = no_norm,
        shortcut: bool = True,
        prior: float | None = None,
    ) -> None:
        super().__init__()
        self.num_anchors, self.num_outputs = num_anchors, num_outputs
        self.shortcut = shortcut and kind == "attention"
        mixer = conv_mixer if kind == "conv" else attention_mixer(**(attention or {}))
        layers, extent = (depth, 3) if kind == "conv" else (depth + 1, 1)
        self.mixers = nn.ModuleList(mixer(channels, 1) for _ in range(layers))
        # Also after the last attention: W_V starts so small that the prediction would see next to nothing.
        self.norms = nn.ModuleList(norm(channels) for _ in range(layers))
        self.relu = nn.ReLU(inplace=True)
        self.predictor = nn.Conv2d(channels, num_anchors * num_outputs, extent, padding=extent // 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)
        if prior is not None and self.predictor.bias is not None:
            nn.init.constant_(self.predictor.bias, -math.log((1 - prior) / prior))

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps [B, C, rows, cols] → [B, rows·cols·A, outputs] each."""
        return tuple(self._read(level) for level in levels)

    def _read(self, x: Tensor) -> Tensor:
        for mixer, norm in zip(self.mixers, self.norms, strict=True):
            x = self.relu(mix(x, mixer, norm, self.shortcut))
        y = self.predictor(x)
        batch, outputs, rows, cols = y.shape  # no -1 below: it has no meaning in a batch of no images
        return y.permute(0, 2, 3, 1).reshape(batch, rows * cols * outputs // self.num_outputs, self.num_outputs)


class DetectionHeads(nn.Module):
    """The pair of heads RetinaNet needs, alike but for their outputs."""

    def __init__(self, classes: DetectionHead, boxes: DetectionHead) -> None:
        super().__init__()
        self.classes, self.boxes = classes, boxes
        self.num_classes, self.num_anchors = classes.num_outputs, classes.num_anchors

    def forward(self, levels: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self.classes(levels), self.boxes(levels)
