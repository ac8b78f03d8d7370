"""CNN → attention: the convolutions of a network's stages become attention layers that compute the same function."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor, nn

from nearsight.convert.report import ConversionReport, LayerReport, measure
from nearsight.nn import AttentionConv2d, GatedAttentionConv2d, LocalAttentionConv2d
from nearsight.nn.attention_conv import refusal
from nearsight.nn.checks import require_choice

Kind = Literal["gpsa", "local"]
LAYERS: dict[str, type[AttentionConv2d]] = {"gpsa": GatedAttentionConv2d, "local": LocalAttentionConv2d}

# How networks name their stages: ResNets of torchvision, timm and ours; RegNet; ConvNeXt and EfficientNet; others of
# torchvision.
_STAGE = (
    (re.compile(r"(?:^|\.)layer(\d+)(?:\.|$)"), 0),
    (re.compile(r"(?:^|\.)s(\d)(?:\.|$)"), 0),
    (re.compile(r"(?:^|\.)(?:stages|blocks)\.(\d+)(?:\.|$)"), 1),
    (re.compile(r"(?:^|\.)features\.(\d+)(?:\.|$)"), 0),
)


class Conversion(NamedTuple):
    """A network with attention, and what became of each of its convolutions."""

    model: nn.Module
    report: ConversionReport


def stage_of(name: str) -> int | None:
    """The stage, counted from 1, that a layer's name puts it in; None for a stem, a head, or other names."""
    for pattern, shift in _STAGE:
        if (found := pattern.search(name)) is not None:
            return int(found.group(1)) + shift
    return None


def to_attention(
    cnn: nn.Module,
    stages: int | str | Sequence[int | str] | None = None,
    kind: Kind = "gpsa",
    *,
    images: Tensor | None = None,
    **options: Any,
) -> Conversion:
    """A copy of the network in which convolutions wider than a pixel are attention, and a report on every layer.

    `stages` are numbers of stages, counted from 1 as in SASA's Table 3, or beginnings of layers' names, such as
    "stem"; by default every numbered stage, or the whole network where its layers' names number none. `options` go to
    `GatedAttentionConv2d` or `LocalAttentionConv2d`: `border`, `head_dim`, `locality_strength`, and `gate` or
    `window`. With `images` the report says how far each layer, and the network, is from what it was.
    """
    require_choice("kind", kind, get_args(Kind))
    _check_options(kind, options)
    convolutions = {name: module for name, module in cnn.named_modules() if isinstance(module, nn.Conv2d)}
    chosen = _chosen(convolutions, stages)
    model = copy.deepcopy(cnn)
    layers = []
    for name, conv in convolutions.items():
        why = refusal(conv) if name in chosen else "not in the chosen stages"
        if why is None:
            layer = LAYERS[kind].from_convolution(conv, **options)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)
            layers.append(LayerReport.converted(name, conv, layer))
        else:
            layers.append(LayerReport.left(name, conv, why))
    if not any(layer.kind for layer in layers):
        reasons = sorted({layer.reason for layer in layers if layer.name in chosen})
        raise ValueError(
            f"no convolution of the chosen stages became attention: {'; '.join(reasons) or 'there is none'}"
        )
    report = ConversionReport(tuple(layers))
    return Conversion(model, report if images is None else measure(report, cnn, model, images))


def rebuilt(model: nn.Module, options: object) -> nn.Module:
    """The network with attention as a config says it: `stages`, `kind` and the options of `to_attention`."""
    if not isinstance(options, dict) or not all(isinstance(name, str) and name != "images" for name in options):
        raise ValueError(
            f"converted holds the arguments of to_attention, such as {{kind: gpsa, stages: [4]}}, not {options!r}"
        )
    return to_attention(model, **options).model


def _check_options(kind: str, options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(LAYERS[kind].__init__).parameters if name not in ("self", "conv")]
    for name in options:
        if name not in known:
            raise ValueError(f"attention of kind {kind!r} has no option {name!r}; it has {', '.join(known)}")


def _chosen(names: Iterable[str], stages: int | str | Sequence[int | str] | None) -> set[str]:
    """Names of the convolutions in these stages."""
    names = list(names)
    numbers = {name: stage_of(name) for name in names}
    known = sorted({number for number in numbers.values() if number is not None})
    if stages is None:
        return {name for name in names if numbers[name] is not None or not known}
    found: set[str] = set()
    for stage in [stages] if isinstance(stages, int | str) else stages:
        inside = {name for name in names if _is_inside(name, numbers[name], stage)}
        if not inside:
            tops = ", ".join(sorted({name.split(".")[0] for name in names}))
            numbered = f"stages {', '.join(map(str, known))}" if known else "no numbered stages"
            raise ValueError(f"no convolution is in stage {stage!r}; this network has {numbered}, and layers in {tops}")
        found |= inside
    return found


def _is_inside(name: str, number: int | None, stage: int | str) -> bool:
    if isinstance(stage, int) and not isinstance(stage, bool):
        return number == stage
    return name == stage or name.startswith(f"{stage}.")


def converted_layers(model: nn.Module) -> dict[str, AttentionConv2d]:
    """The layers that stand in place of convolutions, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, AttentionConv2d)}
