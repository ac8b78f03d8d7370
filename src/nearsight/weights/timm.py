"""Weights of other implementations, in and out, through one key map.

timm's ConViT has the names of the released one (180 tensors). Ours differ from it in the positional part of a GPSA
layer, from timm's ViT and DeiT in nothing, and from timm's and torchvision's ResNet in the slot of the 3×3 and the
stem's prefix.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor, nn


class _Rule(NamedTuple):
    theirs: str
    ours: str
    theirs_pattern: re.Pattern
    ours_pattern: re.Pattern
    convert: Callable[[Tensor], Tensor]  # its own inverse


def _rule(theirs: str, ours: str, where: str = "{}", convert: Callable[[Tensor], Tensor] = lambda x: x) -> _Rule:
    theirs_pattern = re.compile(f"^{where.format(re.escape(theirs))}")
    return _Rule(theirs, ours, theirs_pattern, re.compile(f"^{where.format(re.escape(ours))}"), convert)


_IN_BLOCK = r"(blocks\.\d+\.attn\.){}"
_IN_BOTTLENECK = r"(layer\d\.\d+\.){}(?=\.)"
_RULES = (
    # Theirs is (δ_col, δ_row, ‖δ‖²); ours is Eq. 5's order.
    _rule("pos_proj.weight", "v_pos", _IN_BLOCK, lambda weight: weight.flip(1)),
    _rule("pos_proj.bias", "pos_bias", _IN_BLOCK),
    _rule("gating_param", "gate", _IN_BLOCK),
    _rule("conv2", "mixer", _IN_BOTTLENECK),
    _rule("conv1", "stem.conv1", r"(){}(?=\.)"),
    _rule("bn1", "stem.bn1", r"(){}(?=\.)"),
)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of timm, of the released ConViT, and of torchvision's ResNet → ours."""
    return _translate(state, lambda rule: (rule.theirs_pattern, rule.ours))


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours → timm's: the inverse of `from_timm`."""
    return _translate(state, lambda rule: (rule.ours_pattern, rule.theirs))


def _translate(state: Mapping[str, Tensor], direction: Callable[[_Rule], tuple[re.Pattern, str]]) -> dict[str, Tensor]:
    translated = {}
    for name, tensor in state.items():
        for rule in _RULES:
            pattern, target = direction(rule)
            if pattern.match(name):
                name = pattern.sub(lambda match, target=target: match.group(1) + target, name)  # type: ignore[misc]
                tensor = rule.convert(tensor)
                break
        translated[name] = tensor
    return translated


def load_timm_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a foreign state dict into one of our models; every name and shape must fit."""
    ours, given = model.state_dict(), from_timm(state)
    missing, unknown = sorted(ours.keys() - given.keys()), sorted(given.keys() - ours.keys())
    misshapen = [
        f"{name} ({list(given[name].shape)}, expected {list(ours[name].shape)})"
        for name in sorted(ours.keys() & given.keys())
        if given[name].shape != ours[name].shape
    ]
    if missing or unknown or misshapen:
        listed = [
            f"{what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
            if names
        ]
        raise ValueError(
            f"these weights are not for this model: {'; '.join(listed)}. Build it with the weights' own classes and "
            "input size (set_input_size comes after loading), and give the state dict, not a checkpoint around it"
        )
    model.load_state_dict(given)
