"""What became of each convolution, and by how much the new layers differ from the old ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.nn import AttentionConv2d, GatedAttentionConv2d


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One convolution. Differences are the largest absolute ones, on images, of the layer alone."""

    name: str
    convolution: str
    kind: str = ""
    """"gpsa" or "local"; empty for a convolution that was left."""
    reason: str = ""
    """Why it was left."""
    parameters: tuple[int, int] = (0, 0)
    """Before and after."""
    rim: int = 0
    """At so many outputs along each edge the border rule makes another function of it."""
    output_size: tuple[int, int] | None = None
    scale: float | None = None
    """Root mean square of the convolution's output."""
    inside_difference: float | None = None
    rim_difference: float | None = None

    @classmethod
    def converted(cls, name: str, conv: nn.Conv2d, layer: AttentionConv2d) -> LayerReport:
        kind = "gpsa" if isinstance(layer, GatedAttentionConv2d) else "local"
        sizes = _count(conv), _count(layer)
        return cls(name=name, convolution=_words(conv), kind=kind, parameters=sizes, rim=layer.rim)

    @classmethod
    def left(cls, name: str, conv: nn.Conv2d, reason: str) -> LayerReport:
        return cls(name=name, convolution=_words(conv), reason=reason, parameters=(_count(conv), _count(conv)))

    def __str__(self) -> str:
        if not self.kind:
            return f"{self.name}: {self.convolution}: left: {self.reason}"
        words = (
            f"{self.name}: {self.convolution} → {self.kind}, {self.parameters[0]:,} → {self.parameters[1]:,} parameters"
        )
        if self.rim:
            words += f"; another function in a rim of {self.rim}"
            if self.output_size is not None:
                words += f" of {self.output_size[0]}×{self.output_size[1]} outputs"
        if self.inside_difference is not None:
            words += f"; differs by at most {self.inside_difference:.1e}"
            words += "" if self.rim_difference is None else f", in the rim by {self.rim_difference:.1e}"
            words += f" (outputs are about {self.scale:.1e})"
        return words


@dataclass(frozen=True)
class ConversionReport:
    """All convolutions of a network, in its order."""

    layers: tuple[LayerReport, ...]
    output_difference: float | None = None
    """The largest absolute difference of the network's outputs on the images."""

    @property
    def converted(self) -> tuple[LayerReport, ...]:
        return tuple(layer for layer in self.layers if layer.kind)

    @property
    def left(self) -> tuple[LayerReport, ...]:
        return tuple(layer for layer in self.layers if not layer.kind)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [str(layer) for layer in self.converted]
        reasons: dict[str, list[str]] = {}
        for layer in self.left:
            reasons.setdefault(layer.reason, []).append(layer.name)
        lines += [f"left, {reason}: {', '.join(names)}" for reason, names in reasons.items()]
        if self.output_difference is not None:
            lines.append(f"outputs differ by at most {self.output_difference:.1e}")
        return "\n".join(lines)


def measure(report: ConversionReport, cnn: nn.Module, model: nn.Module, images: Tensor) -> ConversionReport:
    """The report with differences on these images; both networks in evaluation mode, each layer on the CNN's inputs."""
    found: dict[str, LayerReport] = {}

    def compare(layer: LayerReport) -> Callable[..., None]:
        new = model.get_submodule(layer.name)
        assert isinstance(new, AttentionConv2d)

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            difference = (new(inputs[0]) - output).abs().amax(dim=(0, 1))
            rim = layer.rim
            inside = difference[rim : difference.shape[0] - rim, rim : difference.shape[1] - rim]
            found[layer.name] = replace(
                layer,
                output_size=(output.shape[2], output.shape[3]),
                scale=output.square().mean().sqrt().item(),
                inside_difference=inside.max().item() if inside.numel() else 0.0,
                rim_difference=difference.max().item() if rim else None,
            )

        return hook

    with evaluating(cnn), evaluating(model), ExitStack() as hooks, torch.no_grad():
        for layer in report.converted:
            hooks.callback(cnn.get_submodule(layer.name).register_forward_hook(compare(layer)).remove)
        before = cnn(images)
        after = model(images)
    outputs = (after - before).abs().max().item() if isinstance(before, Tensor) else None
    return ConversionReport(tuple(found.get(layer.name, layer) for layer in report.layers), outputs)


class evaluating:
    """Evaluation mode inside the context; every module's own mode afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self._modes = [(module, module.training) for module in model.modules()]
        self._model = model

    def __enter__(self) -> None:
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        for module, training in self._modes:
            module.training = training


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _words(conv: nn.Conv2d) -> str:
    words = f"{conv.kernel_size[0]}×{conv.kernel_size[1]}, {conv.in_channels} → {conv.out_channels}"
    if conv.stride != (1, 1):
        words += f", stride {conv.stride[0] if conv.stride[0] == conv.stride[1] else conv.stride}"
    if conv.groups > 1:
        words += f", {conv.groups} groups"
    return words
