"""Attention → CNN: the convolution that heads have become, and how much of each layer it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearsight.convert.attention import converted_layers
from nearsight.convert.report import evaluating
from nearsight.functional import ConvAxes, positional_axis_logits, relative_logits, tap_windows
from nearsight.nn import AttentionConv2d, GatedAttentionConv2d, LocalAttentionConv2d

_REACH = 64  # pixels around the query in which a positional map is normalised where no image says how large grids are


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """One layer as the convolution nearest to it. Lists have an entry for each head, which is a tap of the kernel."""

    name: str
    position_in_kernel: list[float]
    """Share of the positional map on the pixels of the kernel, in the middle of a large image."""
    position_on_tap: list[float]
    """Share of it on the head's own tap."""
    gate_value: list[float] | None = None
    """σ(λ), the share of attention that is position's; None for local attention, which has no gate."""
    attention_in_kernel: list[float] | None = None
    """Measured on images: the share on pixels of the kernel of all weight that is inside the image."""
    explained: float | None = None
    """Share of the variance of the layer's outputs, over images and places, that the convolution explains."""

    def __str__(self) -> str:
        words = f"{self.name}: {_percent(self.position_in_kernel)} of position in the kernel, "
        words += f"{_percent(self.position_on_tap)} on the head's own tap"
        if self.gate_value is not None:
            words += f"; gates {min(self.gate_value):.3f} to {max(self.gate_value):.3f}"
        if self.attention_in_kernel is not None and self.explained is not None:
            words += f"; {_percent(self.attention_in_kernel)} of attention in the kernel"
            words += f"; the convolution explains {100 * self.explained:.2f} % of the output's variance"
        return words


@dataclass(frozen=True)
class ReadingReport:
    """Every attention layer that stands in the place of a convolution, in the network's order."""

    layers: tuple[LayerReading, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.layers))


class Reading(NamedTuple):
    """A network of convolutions, and how much of the attention they are."""

    model: nn.Module
    report: ReadingReport


def to_convolution(model: nn.Module, images: Tensor | None = None) -> Reading:
    """A copy of the network in which the layers that `to_attention` made are convolutions again, and a report.

    With M_ts the weight that head t has on the pixel of tap s, the layer's nearest convolution has the matrices
    Σ_t M_ts W_t. M is the mean over the images, and over queries whose tap s is inside the image; without images it is
    position's share alone, far from any edge.
    """
    layers = converted_layers(model)
    if not layers:
        raise ValueError("this network has no layers that to_attention made")
    seen: dict[str, Tensor] = {}
    if images is not None:
        with evaluating(model), torch.no_grad():
            seen = layer_inputs(model, images, AttentionConv2d)
    copied = copy.deepcopy(model)
    readings = []
    for name, layer in layers.items():
        position = _position_matrix(layer)
        gate = layer.gate_value.detach() if isinstance(layer, GatedAttentionConv2d) else None
        reading = LayerReading(
            name=name,
            position_in_kernel=position.sum(1).tolist(),
            position_on_tap=position.diagonal().tolist(),
            gate_value=None if gate is None else gate.tolist(),
        )
        if name in seen:
            conv, reading = _measured(layer, seen[name], reading)
        else:
            conv = _convolution(layer, position if gate is None else gate[:, None] * position)
        parent, _, own = name.rpartition(".")
        setattr(copied.get_submodule(parent), own, conv)
        readings.append(reading)
    return Reading(copied, ReadingReport(tuple(readings)))


def layer_inputs(model: nn.Module, images: Tensor, *kinds: type[nn.Module]) -> dict[str, Tensor]:
    """What layers of these kinds are given, by name in the order in which they are first called."""
    given: dict[str, Tensor] = {}

    def keep_input(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name not in given:
                given[name] = inputs[0].clone()  # a network may go on to change it in place

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                hooks.callback(module.register_forward_pre_hook(keep_input(name)).remove)
        model(images)
    return given


@torch.no_grad()
def _measured(layer: AttentionConv2d, x: Tensor, reading: LayerReading) -> tuple[nn.Conv2d, LayerReading]:
    y, weights = layer(x, need_weights=True)
    matrix, in_kernel = _attention_on_taps(layer, x, weights)
    conv = _convolution(layer, matrix)
    residual = y - conv(x)
    unexplained = _variance(residual) / _variance(y).clamp_min(torch.finfo(y.dtype).tiny)
    return conv, replace(reading, attention_in_kernel=in_kernel.tolist(), explained=1 - unexplained.item())


def _variance(y: Tensor) -> Tensor:
    """Around each channel's mean, summed over channels."""
    return y.var(dim=(0, 2, 3), unbiased=False).sum()


def _convolution(layer: AttentionConv2d, matrix: Tensor) -> nn.Conv2d:
    """The convolution of the layer's shape whose tap s has Σ_t M_ts W_t."""
    size: dict[str, Any] = {
        name: getattr(layer, name)
        for name in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    }
    conv = nn.Conv2d(layer.in_channels, layer.out_channels, bias=layer.bias is not None, **size).to(layer.weight)
    with torch.no_grad():
        conv.weight.copy_((layer.weight.flatten(2) @ matrix.to(layer.weight)).view_as(conv.weight))
        if conv.bias is not None and layer.bias is not None:
            conv.bias.copy_(layer.bias)
    return conv.train(layer.training)


@torch.no_grad()
def _position_matrix(layer: AttentionConv2d) -> Tensor:
    """What each head's positional map has on the pixel of each tap, [n, n], in the middle of a large image."""
    if isinstance(layer, LocalAttentionConv2d):
        query = layer.query_bias.view(layer.num_heads, layer.head_dim)[None, None, None]
        logits = relative_logits(query, layer.row_embedding, layer.col_embedding)[0, 0, 0]
        weights = logits.flatten(1).softmax(1).view_as(logits)
        middle = (layer.window - 1) // 2
        rows, cols = (layer.axes.offsets().to(weights.device) + middle).unbind(1)
        return weights[:, rows, cols]
    assert isinstance(layer, GatedAttentionConv2d)
    square, *linear = layer.v_pos.unbind(1)
    offset = torch.arange(-_REACH, _REACH + 1, device=square.device, dtype=square.dtype)[None]
    by_row, by_col = (positional_axis_logits(square, one, offset)[:, 0].softmax(1) for one in linear)
    rows, cols = (layer.axes.offsets().to(square.device) + _REACH).unbind(1)
    return by_row[:, rows] * by_col[:, cols]


def _attention_on_taps(layer: AttentionConv2d, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """What each head has on the pixel of each tap, the mean over images and queries whose tap is inside [n, n]; and
    what share of its weight inside the image is on the kernel, [n]."""
    x, axes = layer.surrounded(x)
    size = (x.shape[2], x.shape[3])
    rows, cols = _places(axes, size, x.device)
    inside = (rows >= 0) & (rows < size[0]) & (cols >= 0) & (cols < size[1])  # [taps, I·J]
    if isinstance(layer, LocalAttentionConv2d):
        middle = (layer.window - 1) // 2
        offsets = layer.axes.offsets().to(x.device) + middle
        mean = weights.mean(0).flatten(0, 1)  # [I·J, n, window, window]
        on_taps = mean[..., offsets[:, 0], offsets[:, 1]].permute(1, 2, 0)
        exists = tap_windows(torch.ones_like(x[:1, :1]), axes, layer.window)[0, 0].flatten(0, 1)
        total = (mean * exists[:, None]).sum(dim=(0, 2, 3))
    else:
        places = (rows.clamp(0, size[0] - 1) * size[1] + cols.clamp(0, size[1] - 1)).T  # [I·J, taps]
        mean = weights.mean(0)  # [n, I·J, H·W]
        on_taps = mean.gather(2, places.expand(len(mean), -1, -1)).transpose(1, 2)
        total = mean.sum(dim=(1, 2))
    on_taps = on_taps * inside  # [n, taps, I·J]
    return on_taps.sum(2) / inside.sum(1).clamp_min(1), on_taps.sum(dim=(1, 2)) / total


def _places(axes: ConvAxes, size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every tap's pixel for every query, [n, I·J] each."""
    rows, cols = (axis.queries(length, device=device) for axis, length in zip(axes, size, strict=True))
    queries = torch.cartesian_prod(rows, cols)
    there = queries[None] + axes.offsets().to(device)[:, None]
    return there[..., 0], there[..., 1]


def _percent(shares: list[float]) -> str:
    return f"{100 * sum(shares) / len(shares):.2f} %"
