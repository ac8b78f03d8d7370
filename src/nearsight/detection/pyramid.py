"""On top of a backbone: the feature pyramid, and the two heads that read every level of it.

The pyramid has maps of several resolutions, all of one width, each with the coarser ones added in. One head predicts
classes, the other corrects boxes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.models.resnet import Mixer
from nearsight.nn import LocalSelfAttention2d
from nearsight.nn.checks import require_finite

Kind = Literal["conv", "attention"]
PRIOR = 0.01  # initial class probability of every anchor: focal loss needs a low one, since most are background
Norm = Callable[[int], nn.Module]
"""channels → a module that normalises them."""


def conv_mixer(channels: int, stride: int) -> nn.Module:
    return nn.Conv2d(channels, channels, 3, stride, padding=1)


# What a mixer takes beside the options of `LocalSelfAttention2d` that a ResNet's `attention` has too.
MIXER_OPTIONS = ("kernel_size", "num_heads", "value_std", "backend")


def attention_mixer(kernel_size: int = 7, num_heads: int = 8, value_std: float = 0.01, **options) -> Mixer:
    """SASA's layer where a detector had a 3×3: values start at W_V ~ N(0, 0.01²), as the convolutions of the heads do,
    and a stride becomes a 2×2 average pool after the attention."""
    require_finite(value_std=value_std)

    def build(channels: int, stride: int) -> nn.Module:
        layer = LocalSelfAttention2d(channels, channels, kernel_size, stride, num_heads, **options)
        with torch.no_grad():
            layer.weight[1].normal_(std=value_std)
        return layer

    return build


def no_norm(channels: int) -> nn.Module:
    return nn.Identity()


def group_norm(channels: int) -> nn.Module:
    """Groups of eight channels where eight divides them. Holds at any batch size, unlike batch norm."""
    return nn.GroupNorm(math.gcd(channels, max(channels // 8, 1)), channels)


def mix(x: Tensor, mixer: nn.Module, norm: nn.Module, shortcut: bool) -> Tensor:
    """norm(mixer(x)), and x itself added where there is a shortcut: averaged over 2×2 where the mixer halves the map.

    Attention needs it outside the backbone, where no residual block surrounds it. A fresh window is nearly even, so
    layer upon layer blurs where things are: without shortcuts detectors learned their boxes far worse than with
    convolutions, with them they learn alike (docs/detection.md has the numbers).
    """
    mixed = norm(mixer(x))
    if not shortcut:
        return mixed
    return mixed + (x if mixed.shape == x.shape else F.avg_pool2d(x, 2, ceil_mode=True))


class FeaturePyramid(nn.Module):
    """Backbone maps C3, C4, C5 (strides 8, 16, 32) → P3 … P7 (strides 8 … 128), `channels` wide each.

    P6 comes from P5, not from C5: SASA's parameter counts leave no room for 2048 input channels. `mixer` makes the
    3×3s: one after each sum, and with stride 2 the ones that lead to P6 and P7. `shortcut` leads around each of them.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int = 256,
        *,
        mixer: Mixer = conv_mixer,
        norm: Norm = no_norm,
        shortcut: bool = False,
    ) -> None:
        super().__init__()
        self.channels, self.shortcut = channels, shortcut
        self.lateral = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in in_channels)
        self.output = nn.ModuleList(mixer(channels, 1) for _ in in_channels)
        self.coarser = nn.ModuleList(mixer(channels, 2) for _ in range(2))
        self.norms = nn.ModuleList(norm(channels) for _ in range(len(in_channels) + 2))
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.kaiming_uniform_(module.weight, a=1)
                nn.init.zeros_(module.bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        inner = [lateral(x) for lateral, x in zip(self.lateral, maps, strict=True)]
        for level in range(len(inner) - 2, -1, -1):
            inner[level] = inner[level] + F.interpolate(inner[level + 1], size=inner[level].shape[-2:], mode="nearest")
        levels = [
            mix(x, mixer, norm, self.shortcut) for x, mixer, norm in zip(inner, self.output, self.norms, strict=False)
        ]
        sixth = mix(levels[-1], self.coarser[0], self.norms[-2], self.shortcut)
        seventh = mix(F.relu(sixth), self.coarser[1], self.norms[-1], self.shortcut)
        return [*levels, sixth, seventh]


class DetectionHead(nn.Module):
    """`depth` 3×3s with ReLUs, then a prediction of `num_outputs` for each anchor; all levels share the weights.

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
