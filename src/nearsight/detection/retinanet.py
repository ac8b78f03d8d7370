"""RetinaNet from built parts: a backbone, a pyramid, two heads and anchors (SASA's section 4.2).

SASA's Table 2 counts one image of 640×640, 90 classes and 6 anchors a position; no other number of anchors and
source of P6 gives the baseline's 33.4 M parameters and 182 B FLOPS. Its text replaces the pyramid's 3×3s by attention
as well as the heads', but its 22.0 M and 110 to 111 B are what attention in the heads alone costs (22.0 M, 112 to
113 B); with the pyramid's it is 20.0 M and 106 to 107 B. Both are here: `…_attention_heads` is the row as it was
counted, `…_attention` as it is described.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.detection.anchors import AnchorGrid, DetectorOutputs, anchor_sizes
from nearsight.detection.pyramid import (
    MIXER_OPTIONS,
    PRIOR,
    DetectionHead,
    DetectionHeads,
    FeaturePyramid,
    Kind,
    Norm,
    attention_mixer,
    conv_mixer,
    group_norm,
    no_norm,
)
from nearsight.models.registry import arguments_of, create_model, register
from nearsight.models.resnet import ATTENTION_OPTIONS, attention_options
from nearsight.models.saving import Saved
from nearsight.models.sizes import RESNET_LAYERS
from nearsight.models.vit import VisionTransformer
from nearsight.nn import LocalSelfAttention2d
from nearsight.nn.checks import require_choice, require_images, require_positive, require_switch

NORMS: dict[str, Norm] = {"none": no_norm, "group": group_norm}


class ViTBackbone(nn.Module):
    """A vision transformer as a backbone: its last patches, once more at twice and once at half the resolution.

    Neither paper has it. A transformer keeps one resolution throughout, so the pyramid's scales come from its last map
    alone: a transposed convolution makes the finer one, a max pool the coarser one. Positions are relative (ConViT) or
    resampled (DeiT), so any image size works that twice the patch divides.
    """

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        width, patch = vit.num_features, vit.patch_size
        if patch % 2:
            raise ValueError(f"the finer map halves the patch, so patch_size must be even, not {patch}")
        self.vit = vit
        self.finer = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.coarser = nn.MaxPool2d(2)
        self.in_chans, self.stride, self.finest_stride = vit.in_chans, 2 * patch, patch // 2
        self.stage_widths = (width,) * 4

    def forward_intermediates(self, images: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The map, and its three scales as stages 1 to 3 of a ResNet would give them."""
        if tuple(indices) != (1, 2, 3):
            raise ValueError(f"the scales of this backbone stand for stages 1, 2 and 3, not {tuple(indices)}")
        _, (patches,) = self.vit.forward_intermediates(images, indices=1, norm=True)
        return patches, [self.finer(patches), patches, self.coarser(patches)]


class RetinaNet(Saved):
    """Images [B, C, H, W] → raw outputs of every level; losses and boxes come from functions of those.

    The backbone's last three maps (`forward_intermediates`) feed the pyramid. Any image size: what the stride does not
    divide is padded with zeros, the mean colour of normalised images, on the right and below.
    """

    img_size = (640, 640)  # that SASA counts; any will do

    def __init__(
        self, backbone: nn.Module, pyramid: FeaturePyramid, heads: DetectionHeads, anchors: AnchorGrid | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.pyramid, self.heads = backbone, pyramid, heads
        self.anchors = AnchorGrid() if anchors is None else anchors
        if self.anchors.num_anchors != heads.num_anchors:
            raise ValueError(
                f"the heads predict {heads.num_anchors} anchors a position, the grid has {self.anchors.num_anchors}"
            )
        self.stride: int = backbone.stride  # type: ignore[assignment]
        self.in_chans: int = backbone.in_chans  # type: ignore[assignment]

    @property
    def num_classes(self) -> int:
        return self.heads.num_classes

    @property
    def body(self) -> nn.Module:
        """The registered classifier model inside: `inspect` shows its attention, a classifier's weights fit it."""
        return self.backbone.vit if isinstance(self.backbone, ViTBackbone) else self.backbone

    def pad(self, images: Tensor) -> Tensor:
        """Zeros on the right and below, up to what the stride divides."""
        below, right = (-side % self.stride for side in images.shape[-2:])
        return F.pad(images, (0, right, 0, below)) if below or right else images

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith("_embedding")}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """The body's layers; what is added to it, pyramid and heads, counts as the head."""
        inside = r"^backbone\.vit\." if isinstance(self.backbone, ViTBackbone) else r"^backbone\."

        def within(pattern: Any) -> Any:
            if isinstance(pattern, str):
                return pattern.replace("^", inside, 1)
            return [(within(one), number) for one, number in pattern]

        matcher = self.body.group_matcher(coarse)  # type: ignore[operator]
        return {part: within(pattern) for part, pattern in matcher.items()}

    def forward(self, images: Tensor) -> DetectorOutputs:
        require_images(images, self.in_chans, next(self.parameters()).dtype)
        _, maps = self.backbone.forward_intermediates(self.pad(images), indices=(1, 2, 3))  # type: ignore[operator]
        levels = self.pyramid(maps)
        class_logits, box_regression = self.heads(levels)
        anchors = self.anchors([(level.shape[-2], level.shape[-1]) for level in levels])
        return DetectorOutputs(class_logits, box_regression, anchors)


def build_retinanet(
    backbone: str,
    *,
    pyramid: Kind = "conv",
    heads: Kind = "conv",
    num_classes: int = 90,
    channels: int = 256,
    head_depth: int = 4,
    norm: str = "group",
    sizes: Sequence[Sequence[int]] | None = None,
    scales_per_level: int = 2,
    smallest_anchor: int = 32,
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    attention: dict | None = None,
    head_attention: dict | None = None,
    shortcut: bool = True,
    backend: str | None = None,
    **backbone_options: Any,
) -> RetinaNet:
    """A RetinaNet on a registered backbone.

    `norm` sits after each 3×3 (or attention) of pyramid and heads, not after predictions. "group" trains from scratch;
    "none" is what torchvision's first RetinaNet has. `attention` holds options of the backbone's local attention, which
    starts local unless it says otherwise (trained from scratch, boxes are looser with a random start);
    `head_attention` those of the attention in pyramid and heads, and `shortcut` leads around each of that: without is
    as SASA describes it. `backbone_options` go to the backbone itself. Anchors: `scales_per_level` × `aspect_ratios` a
    position, the smallest of side `smallest_anchor` on the finest level; or every side in `sizes`.
    """
    require_choice("pyramid", pyramid, ("conv", "attention"))
    require_choice("heads", heads, ("conv", "attention"))
    require_choice("norm", norm, tuple(NORMS))
    require_positive(num_classes=num_classes, channels=channels, head_depth=head_depth)
    require_positive(scales_per_level=scales_per_level, smallest_anchor=smallest_anchor)
    _require_positive("aspect_ratios", aspect_ratios)
    if sizes is not None and not isinstance(sizes, list | tuple):
        raise ValueError(f"sizes must list the anchors' sides of each level, not {sizes!r}")
    for level in sizes or ():
        _require_positive("each level of sizes", level)
    require_switch(shortcut=shortcut)
    options = attention_options("head_attention", head_attention, (*ATTENTION_OPTIONS, *MIXER_OPTIONS))
    layer = {"backend": backend, **options}
    if "attention" not in (pyramid, heads) and (head_attention or not shortcut):
        stated = f"head_attention={head_attention!r}" if head_attention else "shortcut=False"
        raise ValueError(
            f"{stated} is for attention in pyramid and heads, and both are of convolutions; take a detector whose name "
            "ends in _attention_heads or _attention"
        )
    body, finest_stride = _backbone(backbone, attention, {"backend": backend, **backbone_options})
    anchors = AnchorGrid(
        anchor_sizes(scales_per_level, smallest_anchor) if sizes is None else sizes,
        aspect_ratios,
        strides=[finest_stride * 2**level for level in range(5)],
    )

    def head(num_outputs: int, prior: float | None = None) -> DetectionHead:
        return DetectionHead(
            channels, anchors.num_anchors, num_outputs,
            kind=heads, depth=head_depth, attention=layer, norm=NORMS[norm], shortcut=shortcut, prior=prior,
        )  # fmt: skip

    return RetinaNet(
        body,
        FeaturePyramid(
            body.stage_widths[1:],
            channels,
            mixer=conv_mixer if pyramid == "conv" else attention_mixer(**layer),
            norm=NORMS[norm],
            shortcut=shortcut and pyramid == "attention",
        ),
        DetectionHeads(head(num_classes, PRIOR), head(4)),
        anchors,
    )


def _require_positive(name: str, values: Any) -> None:
    if not isinstance(values, list | tuple) or not values or not all(_is_positive(value) for value in values):
        raise ValueError(f"{name} must be a list of positive numbers, not {values!r}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _backbone(name: str, attention: dict | None, options: dict[str, Any]) -> tuple[Any, int]:
    """The network that makes three maps, and the stride of its finest."""
    known = arguments_of(name)
    stated = attention_options("attention", attention)
    if "attention" in known:
        near = stated.get("positions", "relative") == "relative"  # else it cannot start local
        options["attention"] = {"start": "local", **stated} if near else stated
    body = create_model(name, num_classes=0, **options)
    if stated and not any(isinstance(module, LocalSelfAttention2d) for module in body.modules()):
        raise ValueError(
            f"attention={attention!r} has nothing to act on: {name} has no local attention; take a detector on a "
            "sasa_resnet, or head_attention for the attention in pyramid and heads"
        )
    if isinstance(body, VisionTransformer):
        wrapped = ViTBackbone(body)
        return wrapped, wrapped.finest_stride
    return body, 8


def _register_all() -> None:
    """SASA's Table 2 for three depths, and transformers, which no paper has."""
    for depth in RESNET_LAYERS:
        register(f"retinanet_resnet{depth}", build_retinanet, backbone=f"resnet{depth}")
        for backbone in (f"sasa_resnet{depth}_convstem", f"sasa_resnet{depth}"):
            name = f"retinanet_{backbone}"
            register(name, build_retinanet, backbone=backbone)
            register(f"{name}_attention_heads", build_retinanet, backbone=backbone, heads="attention")
            register(f"{name}_attention", build_retinanet, backbone=backbone, heads="attention", pyramid="attention")
    for size in ("tiny", "small", "base"):
        for family in ("convit", "deit"):
            register(f"retinanet_{family}_{size}", build_retinanet, backbone=f"{family}_{size}")


_register_all()
