"""Published names and layouts of tensors ↔ ours.

Names of timm's ConViT are those of the released one (180 tensors). Ours differ from it in the positional part of a GPSA
layer, from timm's ViT and DeiT in nothing, and from timm's and torchvision's ResNet in the slot of the 3×3 and the
stem's prefix.
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
_IN_BOTTLENECK = r"(layer\d\.\d+\.){}(?=\.)"
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


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of timm, of the released ConViT, and of torchvision's ResNet → ours."""
    return _translate(state, _RULES)


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours → timm's: the inverse of `from_timm`."""
    return _translate(state, [rule._replace(theirs=rule.ours, ours=rule.theirs) for rule in _RULES])


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
