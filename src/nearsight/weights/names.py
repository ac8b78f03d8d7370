"""Published names and layouts of tensors ↔ ours.

Names of timm's ConViT are those of the released one (180 tensors). Ours differ from it in the positional part of a GPSA
layer, from timm's ViT and DeiT in nothing, and from timm's and torchvision's ResNet in the slot of the 3×3 and the
stem's prefix. torchvision's RetinaNet holds a ResNet, and its other parts under names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor


class _Rule(NamedTuple):
    """A part of a tensor's name, where in the name it stands, and what becomes of the tensor."""

    theirs: str
    ours: str
    where: str
    convert: Callable[[Tensor], Tensor] = lambda tensor: tensor  # its own inverse


_IN_BLOCK = r"(blocks\.\d+\.attn\.){}"
_IN_BOTTLENECK = r"((?:backbone\.)?layer\d\.\d+\.){}(?=\.)"
_IN_STEM = r"(){}(?=\.)"
_RULES = (
    # Theirs is (δ_col, δ_row, ‖δ‖²); ours is Eq. 5's order.
    _Rule("pos_proj.weight", "v_pos", _IN_BLOCK, lambda weight: weight.flip(1)),
    _Rule("pos_proj.bias", "pos_bias", _IN_BLOCK),
    _Rule("gating_param", "gate", _IN_BLOCK),
    _Rule("conv2", "mixer", _IN_BOTTLENECK),
    _Rule("conv1", "stem.conv1", _IN_STEM),
    _Rule("bn1", "stem.bn1", _IN_STEM),
)

# Parts of torchvision's RetinaNet. Its convolutions outside the body are sequences of one: `.0` after the number.
_DETECTOR = (
    ("backbone.body.conv1.", "backbone.stem.conv1.", False),
    ("backbone.body.bn1.", "backbone.stem.bn1.", False),
    ("backbone.body.", "backbone.", False),
    ("backbone.fpn.inner_blocks.", "pyramid.lateral.", True),
    ("backbone.fpn.layer_blocks.", "pyramid.output.", True),
    ("backbone.fpn.extra_blocks.p6.", "pyramid.coarser.0.", False),
    ("backbone.fpn.extra_blocks.p7.", "pyramid.coarser.1.", False),
    ("head.classification_head.conv.", "heads.classes.mixers.", True),
    ("head.classification_head.cls_logits.", "heads.classes.predictor.", False),
    ("head.regression_head.conv.", "heads.boxes.mixers.", True),
    ("head.regression_head.bbox_reg.", "heads.boxes.predictor.", False),
)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of timm, of the released ConViT, and of torchvision's ResNet → ours."""
    return _translate(state, _RULES)


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours → timm's: the inverse of `from_timm`."""
    return _translate(state, [rule._replace(theirs=rule.ours, ours=rule.theirs) for rule in _RULES])


def from_torchvision_detector(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of torchvision's `retinanet_resnet50_fpn` → ours."""
    pairs = [(theirs, ours, (".0.", ".")) for theirs, ours, _ in _DETECTOR]
    return from_timm(_with_prefixes(state, pairs))


def to_torchvision_detector(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names of our convolutional RetinaNet → torchvision's: the inverse of `from_torchvision_detector`."""
    pairs = [(ours, theirs, (".", ".0.")) for theirs, ours, _ in _DETECTOR]
    return _with_prefixes(to_timm(state), pairs)


def _with_prefixes(state: Mapping[str, Tensor], pairs: Iterable[tuple[str, str, tuple[str, str]]]) -> dict[str, Tensor]:
    """Beginnings of names → others, the first that fits; in sequences of one, the number after the first is changed."""
    sequences = {name for theirs, ours, in_sequence in _DETECTOR if in_sequence for name in (theirs, ours)}
    renamed = {}
    for name, tensor in state.items():
        for old, new, (before, after) in pairs:
            if name.startswith(old):
                rest = name.removeprefix(old)
                name = new + (rest.replace(before, after, 1) if old in sequences else rest)
                break
        renamed[name] = tensor
    return renamed


STYLES: tuple[tuple[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]], ...] = (
    ("", dict),
    ("timm's names", from_timm),
    ("torchvision's names", from_torchvision_detector),
)
"""How weights may be named: as the model's own, or as another library's."""


def _translate(state: Mapping[str, Tensor], rules: Iterable[_Rule]) -> dict[str, Tensor]:
    translated = {}
    for name, tensor in state.items():
        for rule in rules:
            pattern = "^" + rule.where.format(re.escape(rule.theirs))
            if re.match(pattern, name):
                name, tensor = re.sub(pattern, rf"\g<1>{rule.ours}", name), rule.convert(tensor)
                break
        translated[name] = tensor
    return translated
