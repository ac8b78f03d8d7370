"""Attention in the place of `nn.Conv2d`: the convolution's taps are heads, which start on their pixel and may leave it.

    y_i = Σ_t W_t Σ_j A^t_ij x_j + b

has one attention map A^t for each tap t of the kernel. With all of A^t_i on the tap's own pixel i + Δ_t this is the
convolution. So `weight` and `bias` are the convolution's own, in its shape and under its names: a head's value and
output projections would act only as their product, which is W_t.

Two kinds of maps: GPSA over the whole grid (ConViT Eq. 6–7), and SASA's attention within a window (Eq. 3).
Shapes: B batch, C channels, n taps, H×W keys, I×J queries, d channels of a query.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional as equations
from ..functional import Border, ConvAxes, ConvAxis
from ..geometry import window_offsets
from .checks import require_choice, require_finite, require_images, require_positive
from .positional import STRONGEST
from .random import trunc_normal_

HEAD_DIM = 32
GATE, LOCALITY_STRENGTH = 14.0, 14.0
"""Of a layer that starts as its convolution: 8e-7 of the attention goes to content, and as much to each neighbour of
the tap's pixel. Gradients of gates, queries, keys and positions are smaller by this factor, but not zero."""
LARGEST_DENSE = 256
"""Keys of a 16×16 grid: up to here GPSA mixes whole maps; beyond, their halves are applied without making one."""
EXPLICIT = ("reflect", "circular")
"""Padding modes whose pixels are copied around the image before anything attends."""


def refusal(conv: nn.Conv2d) -> str | None:
    """Why a convolution cannot be attention; None where it can."""
    if type(conv) is not nn.Conv2d:
        return f"{type(conv).__name__} is not a plain nn.Conv2d: it may compute something else"
    axes = axes_of(conv)
    if axes.num_taps == 1:
        return "a 1×1 convolution has a single tap, on its own pixel"
    if axes.rows.first < 0 or axes.cols.first < 0:
        return f"padding={conv.padding} sets windows' centres outside the image, where nothing can ask"
    return None


def axes_of(conv: nn.Conv2d) -> ConvAxes:
    """Where a convolution reads."""
    axes = []
    for place, (size, stride, dilation) in enumerate(zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)):
        if isinstance(conv.padding, str):
            whole = dilation * (size - 1) if conv.padding == "same" else 0
            before, after = whole // 2, whole - whole // 2
        else:
            before = after = int(conv.padding[place])
        axes.append(ConvAxis(size, stride, dilation, before, after))
    return ConvAxes(*axes)


class AttentionConv2d(nn.Module):
    """What both kinds share: the convolution's shape, weight and bias, and its border.

    `border` "zeros": taps that look outside the image see zeros, as with zero padding. "mask": they see the nearest
    pixel inside, as with replicate padding; a convolution with `padding_mode="replicate"` always has this one.
    Images are padded first where the convolution's mode is "reflect" or "circular".
    """

    def __init__(self, conv: nn.Conv2d, *, border: Border = "zeros", head_dim: int = HEAD_DIM) -> None:
        """A fresh layer of the convolution's shape; `from_convolution` also takes its weights."""
        super().__init__()
        if (why := refusal(conv)) is not None:
            raise ValueError(f"this convolution cannot be attention: {why}")
        require_choice("border", border, get_args(Border))
        require_positive(head_dim=head_dim)
        self.in_channels, self.out_channels, self.groups = conv.in_channels, conv.out_channels, conv.groups
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        self.border: Border = "mask" if conv.padding_mode == "replicate" else border
        self.axes = axes_of(conv)
        self.num_heads = self.axes.num_taps
        self.head_dim = min(head_dim, conv.in_channels + conv.in_channels % 2)
        self.weight = nn.Parameter(torch.empty_like(conv.weight))
        self.bias = None if conv.bias is None else nn.Parameter(torch.empty_like(conv.bias))

    @classmethod
    def from_convolution(cls, conv: nn.Conv2d, **options: Any) -> Any:
        """The layer that computes `conv` until it is trained."""
        layer = cls(conv, **options)
        with torch.no_grad():
            layer.weight.copy_(conv.weight)
            if layer.bias is not None and conv.bias is not None:
                layer.bias.copy_(conv.bias)
        return layer.to(conv.weight).train(conv.training)

    def reset_parameters(self) -> None:
        """A convolution's own initial weights; where the taps look is the subclass's."""
        nn.Conv2d.reset_parameters(self)  # type: ignore[arg-type]

    @property
    def rim(self) -> int:
        """At so many outputs along each edge the layer is not its convolution, as its border is another."""
        exact = self.padding_mode != "zeros" or self.border == "zeros"
        return 0 if exact else max(self.axes.rows.rim, self.axes.cols.rim)

    def forward(self, x: Tensor, need_weights: bool = False):
        """x → y as the convolution's, or (y, weights): see `weights` of the subclass."""
        require_images(x, self.in_channels, self.weight.dtype)
        x, axes = self.surrounded(x)
        size = axes.rows.num_outputs(x.shape[2]), axes.cols.num_outputs(x.shape[3])
        if min(size) < 1:
            raise ValueError(f"a kernel of {self.kernel_size} does not fit images of {x.shape[2]}x{x.shape[3]}")
        weights = self.weights(x, axes) if need_weights else None
        heads = self.gather(x, axes) if weights is None else self.apply_weights(weights, x, axes)
        y = self._mixed(heads, size)
        return y if weights is None else (y, weights)

    def surrounded(self, x: Tensor) -> tuple[Tensor, ConvAxes]:
        """The image with pixels around it where those are copies of its own, and the axes that are left to do."""
        if self.padding_mode not in EXPLICIT:
            return x, self.axes
        rows, cols = self.axes
        x = F.pad(x, (cols.before, cols.after, rows.before, rows.after), mode=self.padding_mode)
        return x, ConvAxes(rows._replace(before=0, after=0), cols._replace(before=0, after=0))

    def weights(self, x: Tensor, axes: ConvAxes) -> Tensor:
        raise NotImplementedError

    def gather(self, x: Tensor, axes: ConvAxes) -> Tensor:
        """What each tap sees, [B, I·J, n, C]."""
        return self.apply_weights(self.weights(x, axes), x, axes)

    def apply_weights(self, weights: Tensor, x: Tensor, axes: ConvAxes) -> Tensor:
        raise NotImplementedError

    def _mixed(self, heads: Tensor, size: tuple[int, int]) -> Tensor:
        """Σ_t W_t of what the taps saw: [B, I·J, n, C] → [B, O, I, J]."""
        if self.groups == 1:
            per_head = self.weight.flatten(2).transpose(1, 2).flatten(1)  # [O, n·C]
            return F.linear(heads.flatten(2), per_head, self.bias).transpose(1, 2).unflatten(2, size)
        by_channel = heads.permute(0, 3, 2, 1).flatten(1, 2).unflatten(2, size)  # [B, C·n, I, J]
        return F.conv2d(by_channel, self.weight.flatten(1)[..., None, None], self.bias, groups=self.groups)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"groups={self.groups}, padding={self.padding}, padding_mode={self.padding_mode!r}, "
            f"border={self.border!r}, num_heads={self.num_heads}, head_dim={self.head_dim}"
        )


class GatedAttentionConv2d(AttentionConv2d):
    """GPSA with a head for each tap: A = (1 − σ(λ)) softmax(QKᵀ/√d) + σ(λ) softmax(v_posᵀ r), over the whole grid.

    Content attends to the image's own pixels alone, whatever the border.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        *,
        border: Border = "zeros",
        head_dim: int = HEAD_DIM,
        gate: float = GATE,
        locality_strength: float = LOCALITY_STRENGTH,
    ) -> None:
        super().__init__(conv, border=border, head_dim=head_dim)
        require_finite(gate=gate)
        require_strength(locality_strength)
        self.initial_gate, self.locality_strength = float(gate), float(locality_strength)
        self.qk = nn.Linear(self.in_channels, 2 * self.num_heads * self.head_dim, bias=False)
        self.v_pos = nn.Parameter(torch.empty(self.num_heads, 3))
        self.gate = nn.Parameter(torch.empty(self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.qk.weight, std=self.in_channels**-0.5)
        nn.init.constant_(self.gate, self.initial_gate)
        centers = self.axes.offsets().to(self.v_pos)
        with torch.no_grad():
            self.v_pos.copy_(equations.convolutional_v_pos(centers, self.locality_strength))

    @property
    def gate_value(self) -> Tensor:
        """σ(λ): the share of attention paid to position, one number for each tap."""
        return self.gate.sigmoid()

    def query_key(self, x: Tensor, axes: ConvAxes | None = None) -> tuple[Tensor, Tensor]:
        """[B, C, H, W] → queries [B, n, I·J, d] where they sit, or of every pixel, and keys [B, n, H·W, d]."""
        pixels = x.flatten(2).transpose(1, 2)
        asking = pixels
        if axes is not None:
            rows, cols = (axis.queries(length, device=x.device) for axis, length in zip(axes, x.shape[2:], strict=True))
            asking = pixels[:, (rows[:, None] * x.shape[3] + cols).flatten()]
        inner = self.num_heads * self.head_dim
        query, key = (
            F.linear(tokens, weight).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for tokens, weight in zip((asking, pixels), self.qk.weight.split(inner), strict=True)
        )
        return query, key

    def _axis_weights(self, x: Tensor, axes: ConvAxes) -> list[Tensor]:
        """Position, split into rows [n, I, H] and columns [n, J, W]."""
        square, *linear = self.v_pos.unbind(-1)
        return [
            equations.tap_axis_weights(square, one, axis, length, self.border)
            for one, axis, length in zip(linear, axes, x.shape[2:], strict=True)
        ]

    def weights(self, x: Tensor, axes: ConvAxes) -> Tensor:
        """[B, n, I·J, H·W]; with the border "zeros" rows near an edge sum to less than one."""
        by_row, by_col = self._axis_weights(x, axes)
        position = torch.einsum("nih,njw->nijhw", by_row, by_col).flatten(3).flatten(1, 2)
        content = equations.attention_weights(*self.query_key(x, axes))
        share = self.gate_value[:, None, None]
        return (1 - share).to(content.dtype) * content + (share * position).to(content.dtype)

    def apply_weights(self, weights: Tensor, x: Tensor, axes: ConvAxes) -> Tensor:
        seen = weights.flatten(1, 2) @ x.flatten(2).transpose(1, 2)
        return seen.unflatten(1, weights.shape[1:3]).transpose(1, 2)

    def gather(self, x: Tensor, axes: ConvAxes) -> Tensor:
        """On large grids without any map: fused attention for content, rows after columns for position."""
        if x.shape[2] * x.shape[3] <= LARGEST_DENSE:
            return super().gather(x, axes)
        query, key = self.query_key(x, axes)
        wider = self.in_channels - self.head_dim
        if wider > 0:  # fused attention wants as many channels of queries as of values; the scale is that of d
            query, key = F.pad(query, (0, wider)), F.pad(key, (0, wider))
        pixels = x.permute(0, 2, 3, 1)
        values = pixels.flatten(1, 2)[:, None].expand(-1, self.num_heads, -1, -1)
        content = F.scaled_dot_product_attention(query, key, values, scale=self.head_dim**-0.5)  # [B, n, I·J, C]
        share = self.gate_value[:, None, None]
        by_row, by_col = self._axis_weights(x, axes)
        columns = torch.einsum("njw,bhwc->bnhjc", by_col.to(x.dtype), pixels)
        position = torch.einsum("nih,bnhjc->bnijc", (share * by_row).to(x.dtype), columns).flatten(2, 3)
        return torch.addcmul(position, (1 - share).to(x.dtype), content).transpose(1, 2)


class LocalAttentionConv2d(AttentionConv2d):
    """SASA's local attention with a head for each tap: A = softmax(qᵀk + qᵀr) within a window of pixels.

    A constant part of the query, `query_bias`, meets embeddings of δ² and so holds each head on its tap. `window` is
    the side of the window, at least that of the kernel, which it is by default.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        *,
        border: Border = "zeros",
        head_dim: int = HEAD_DIM,
        locality_strength: float = LOCALITY_STRENGTH,
        window: int | None = None,
    ) -> None:
        super().__init__(conv, border=border, head_dim=head_dim)
        require_strength(locality_strength)
        self.locality_strength = float(locality_strength)
        self.head_dim += self.head_dim % 2  # half of it for rows, half for columns
        least = max(axis.reach for axis in self.axes) + 1
        self.window = least if window is None else window
        require_positive(window=self.window)
        if self.window < least:
            raise ValueError(
                f"window={window} does not hold the kernel, whose taps are {least} pixels wide; use {least}"
            )
        inner = self.num_heads * self.head_dim
        self.qk = nn.Linear(self.in_channels, 2 * inner, bias=False)
        self.query_bias = nn.Parameter(torch.empty(inner))  # a vector: weight decay spares it
        self.row_embedding = nn.Parameter(torch.empty(self.num_heads, self.window, self.head_dim // 2))
        self.col_embedding = nn.Parameter(torch.empty(self.num_heads, self.window, self.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        trunc_normal_(self.qk.weight, std=0.02)
        offsets = window_offsets(self.window, device=self.weight.device)
        half = self.head_dim // 2
        with torch.no_grad():
            self.query_bias.zero_()
            query, key = self.qk.weight.unflatten(0, (2, self.num_heads, self.head_dim))
            key.zero_()  # content's logits grow with the square of the input; learning begins with the keys
            for axis, embedding in enumerate((self.row_embedding, self.col_embedding)):
                distance = offsets - self.axes.offsets().to(offsets)[:, axis, None]  # [n, window]
                embedding.zero_()
                embedding[..., 0] = -self.locality_strength * distance.square()
                self.query_bias.view(self.num_heads, self.head_dim)[:, axis * half] = 1.0
                query[:, axis * half] = 0.0  # the position's channels start without content

    def query_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of every pixel: [B, C, H, W] → query [B, H, W, n, d] and key [B, n, d, H, W]."""
        projected = self.qk(x.permute(0, 2, 3, 1)).unflatten(-1, (2, self.num_heads, self.head_dim))
        query, key = projected.unbind(3)
        return query + self.query_bias.view(self.num_heads, self.head_dim), key.permute(0, 3, 4, 1, 2)

    def weights(self, x: Tensor, axes: ConvAxes) -> Tensor:
        """[B, I, J, n, window, window], which sum to one; with the border "zeros" over pixels outside too."""
        query, key = self.query_key(x)
        rows, cols = (axis.queries(length, device=x.device) for axis, length in zip(axes, x.shape[2:], strict=True))
        query = query[:, rows][:, :, cols]
        return equations.tap_window_weights(query, key, self.row_embedding, self.col_embedding, axes, self.border)

    def apply_weights(self, weights: Tensor, x: Tensor, axes: ConvAxes) -> Tensor:
        seen = equations.tap_windows(x, axes, self.window)
        return torch.einsum("bijnrc,bdijrc->bijnd", weights, seen).flatten(1, 2)


def require_strength(locality_strength: float) -> None:
    require_finite(locality_strength=locality_strength)
    if not 0 < locality_strength <= STRONGEST:
        raise ValueError(f"locality_strength must be positive and at most {STRONGEST:g}, not {locality_strength}")
