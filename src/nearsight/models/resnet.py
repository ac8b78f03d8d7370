"""One bottleneck ResNet for every row of SASA's tables: each stage's 3×3 is a convolution or local attention.

Baseline: ResNet v1.5 (the stride sits in the 3×3), parameter names as torchvision's but for `mixer`, the slot
of the 3×3. 1×1 convolutions, batch norms and ReLUs stay where they were when attention takes the slot.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..nn import AttentionConv2d, AttentionStem2d, LocalSelfAttention2d
from ..nn.checks import require_choice, require_count, require_finite, require_images, require_positive, require_share
from ..nn.local import has_room_for_local_start
from ..nn.random import DropPath
from ..nn.stem import Values
from .model import Classifier, as_pair, chosen_layers

Stem = Literal["conv", "attention"]
Mixer = Callable[[int, int], nn.Module]
"""(channels, stride) → a module that keeps channels and divides the size by stride."""

STAGE_WIDTHS = (64, 128, 256, 512)
EXPANSION = 4


def conv3x3(channels: int, stride: int) -> nn.Module:
    return nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)


class Bottleneck(nn.Module):
    """1×1 down, spatial mixer, 1×1 up, around a shortcut."""

    def __init__(self, in_width: int, width: int, stride: int, mixer: Mixer, drop_path: float = 0.0) -> None:
        super().__init__()
        out_width = EXPANSION * width
        self.conv1 = nn.Conv2d(in_width, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.mixer = mixer(width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_width)
        self.relu = nn.ReLU(inplace=True)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.downsample: nn.Module | None = None
        if stride > 1 or in_width != out_width:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_width, out_width, 1, stride, bias=False), nn.BatchNorm2d(out_width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self._finish(x, self.mixer(self.relu(self.bn1(self.conv1(x)))))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.mixer(self.relu(self.bn1(self.conv1(x))), need_weights=True)
        return self._finish(x, mixed), weights

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        y = self.bn3(self.conv3(self.relu(self.bn2(mixed))))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(shortcut + self.drop_path(y))


class ConvStem(nn.Module):
    """7×7/2 convolution, batch norm, ReLU, 3×3/2 max pool."""

    def __init__(self, in_chans: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))


class AttentionStem(nn.Module):
    """SASA's stem: attention within 4×4 blocks, batch norm, 4×4 max pool."""

    def __init__(self, attention: AttentionStem2d) -> None:
        super().__init__()
        self.attention = attention
        self.bn1 = nn.BatchNorm2d(attention.out_channels)
        self.maxpool = nn.MaxPool2d(attention.block_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.maxpool(self.bn1(self.attention(images)))


@contextlib.contextmanager
def _statistics_held(module: nn.Module) -> Iterator[None]:
    """Batch norms normalise by the batch as ever, but do not count it a second time."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counters = {counter: counter.clone() for norm in norms if (counter := norm.num_batches_tracked) is not None}
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for counter, counted in counters.items():
            counter.copy_(counted)


# What `attention` may say of the layers: all of their options but those that the network has under its own name.
ATTENTION_OPTIONS = (
    "positions", "content", "share_positions", "border", "projections", "downsample", "bias", "start",
)  # fmt: skip


def attention_options(called: str, options: dict | None, known: Sequence[str] = ATTENTION_OPTIONS) -> dict:
    """Options of attention layers, checked; `called` is the name that the caller knows them by."""
    if options is not None and not isinstance(options, dict):
        raise ValueError(f"{called} holds options of the attention layers, such as border=zeros, not {options!r}")
    for name in options or {}:
        if name not in known:
            raise ValueError(f"{called} has no option {name!r}; choose from {', '.join(known)}")
    return dict(options or {})


def _contexts_of_checkpoint(block: nn.Module) -> tuple:
    """The first run is an ordinary one; the recomputation for the backward pass leaves the running statistics alone."""
    return contextlib.nullcontext(), _statistics_held(block)


class ResNet(Classifier):
    """ResNet-26/38/50 with attention in any choice of stages.

    `attention_stages` counts from 1 as SASA's Table 3 does; `kernel_size` and `num_heads` and whatever else
    `LocalSelfAttention2d` takes (`attention`) hold for all of them, but that a local start is left out where heads are
    too thin or windows too small for it. `width_multiplier` scales every layer (Fig. 5), rounded to a multiple of 16.
    """

    stride = 32
    img_size = (224, 224)

    def __init__(
        self,
        *,
        layers: Sequence[int],
        attention_stages: Sequence[int] = (),
        stem: Stem = "conv",
        kernel_size: int = 7,
        num_heads: int = 8,
        attention: dict | None = None,
        stem_values: Values = "spatial",
        width_multiplier: float = 1.0,
        in_chans: int = 3,
        num_classes: int = 1000,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        require_choice("stem", stem, get_args(Stem))
        require_choice("stem_values", stem_values, get_args(Values))
        if not isinstance(attention_stages, Sequence) or set(attention_stages) - {1, 2, 3, 4}:
            raise ValueError(f"attention_stages lists stages, such as (3, 4), from 1 to 4; got {attention_stages!r}")
        require_finite(width_multiplier=width_multiplier)
        if width_multiplier <= 0:
            raise ValueError(f"width_multiplier must be positive, not {width_multiplier}")
        require_positive(in_chans=in_chans, kernel_size=kernel_size, num_heads=num_heads)
        require_count(num_classes=num_classes)
        require_share(drop_rate=drop_rate, drop_path_rate=drop_path_rate)
        if not isinstance(layers, Sequence) or len(layers) != 4:
            raise ValueError(f"layers gives the blocks of each of four stages, such as (3, 4, 6, 3), not {layers!r}")
        require_positive(**{f"layers[{index}]": depth for index, depth in enumerate(layers)})
        options = attention_options("attention", attention)
        # A multiplied width keeps room for the paper's 8 heads and their two halves.
        widths = [max(round(width * width_multiplier / 16), 1) * 16 for width in STAGE_WIDTHS]
        for stage in attention_stages:
            width = widths[stage - 1]
            per_head, rest = divmod(width, num_heads)
            if rest or (per_head % 2 and options.get("positions", "relative") == "relative"):
                raise ValueError(
                    f"num_heads={num_heads} does not cut the {width} channels of stage {stage} into heads of an even "
                    "number of channels; use 8, as the paper does, or another power of two"
                )
        self.in_chans, self.num_classes = in_chans, num_classes
        self.attention_stages = tuple(sorted(attention_stages))

        def local_attention(channels: int, stride: int) -> nn.Module:
            near = has_room_for_local_start(channels // num_heads, kernel_size)
            own = options if near else {**options, "start": "random"}
            return LocalSelfAttention2d(channels, channels, kernel_size, stride, num_heads, backend=backend, **own)

        self.stem: nn.Module
        if stem == "conv":
            self.stem = ConvStem(in_chans, widths[0])
        else:
            self.stem = AttentionStem(AttentionStem2d(in_chans, widths[0], values=stem_values))
        in_width, index, num_blocks = widths[0], 0, sum(layers)
        stages = []
        for stage, (depth, width) in enumerate(zip(layers, widths, strict=True), start=1):
            mixer = local_attention if stage in attention_stages else conv3x3
            blocks = []
            for position in range(depth):
                stride = 2 if stage > 1 and position == 0 else 1
                drop_path = drop_path_rate * index / max(num_blocks - 1, 1)
                blocks.append(Bottleneck(in_width, width, stride, mixer, drop_path))
                in_width, index = EXPANSION * width, index + 1
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.stage_widths = tuple(EXPANSION * width for width in widths)
        self.num_features = in_width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.head_drop = nn.Dropout(drop_rate)
        self.fc = self._new_head(num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _new_head(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    @property
    def stages(self) -> list[nn.Sequential]:
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    # Promises every model keeps

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith("_embedding")}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {"stem": r"^stem\.", "blocks": r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"}

    def reset_classifier(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.fc = self._new_head(num_classes).to(self.layer1[0].bn1.weight)  # type: ignore[union-attr, arg-type]

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Nothing to change: convolutions and relative positions hold at any size."""
        as_pair(img_size)

    def embed(self, images: Tensor) -> Tensor:
        """Images → what the first bottleneck sees, through the stem."""
        require_images(images, self.in_chans, self.layer4[0].bn1.weight.dtype)  # type: ignore[union-attr, arg-type]
        return self.stem(images)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images → the last stage's map [B, C, H/32, W/32]."""
        x = self.embed(images)
        for stage in self.stages:
            x = self._run_stage(stage, x)
        return x

    def _run_stage(self, stage: nn.Sequential, x: Tensor) -> Tensor:
        for block in stage:
            # A compiled graph does not repeat what changes buffers, and takes no contexts.
            contexts: dict = (
                {} if torch.compiler.is_compiling() else {"context_fn": partial(_contexts_of_checkpoint, block)}
            )
            x = self._run(block, x, **contexts)
        return x

    def forward_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features, and the weights of every attention: [B, rows, cols, heads, k, k] of local ones."""
        x, maps = self.embed(images), []
        for stage in self.stages:
            for block in stage:
                assert isinstance(block, Bottleneck)
                if isinstance(block.mixer, (LocalSelfAttention2d, AttentionConv2d)):
                    x, weights = block.forward_with_weights(x)
                    maps.append(weights)
                else:
                    x = block(x)
        return x, maps

    def forward_intermediates(
        self, images: Tensor, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Features, and the maps after chosen stages (0 to 3; the last n for a number; all by default)."""
        wanted = chosen_layers(indices, 4)
        x, maps = self.embed(images), []
        for index, stage in enumerate(self.stages):
            x = self._run_stage(stage, x)
            if index in wanted:
                maps.append(x)
        return x, maps

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = self.avgpool(features).flatten(1)
        return pooled if pre_logits else self.fc(self.head_drop(pooled))
