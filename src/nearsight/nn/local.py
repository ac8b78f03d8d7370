"""SASA's layer (Ramachandran et al. 2019, Eq. 3) as a module that stands where `nn.Conv2d` stood."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional as equations
from .. import kernels
from ..functional import Border
from ..geometry import window_offsets
from .checks import (
    require_backend,
    require_choice,
    require_divisible,
    require_images,
    require_positive,
    require_switch,
)

Positions = Literal["relative", "absolute", "none"]
Projections = Literal["full", "grouped"]
Downsample = Literal["pool", "stride"]
Start = Literal["random", "local"]
LOCAL_HEAD_DIM = 4  # channels in which a head says where it starts
LOCALITY = 2.0  # by how much a head that starts local weighs a pixel less (in its logit) at distance 1 of its own


def has_room_for_local_start(head_dim: int, kernel_size: int) -> bool:
    """Whether a head has the channels to say where it starts, and its window a pixel but the query's own."""
    return head_dim >= LOCAL_HEAD_DIM and kernel_size > 1


class LocalSelfAttention2d(nn.Module):
    """Each pixel attends to the k×k pixels around it: images [B, in, H, W] → [B, out, ⌈H/stride⌉, ⌈W/stride⌉].

    There is no 1/√d in the logits and no output projection: in a bottleneck the next 1×1 convolution mixes the heads.

    Choices the paper leaves open or ablates:
    - `positions`: "relative" (row and column embeddings, half of each head's channels each), "absolute" (sinusoids
      added to the input) or "none"; `content=False` leaves qᵀk out and needs no keys (Tables 5 and 6).
    - `share_positions`: one set of embeddings for all heads, as in the authors' earlier work, or one for each.
    - `border`: "mask" keeps pixels outside the image out of the softmax, "zeros" leaves them in as zero vectors.
    - `projections`: "full" d×d, which every parameter count of the paper needs, or "grouped" by head, as its text says.
    - `downsample`: with stride s, "pool" averages s×s outputs (the paper), "stride" skips queries (its rebuttal).
    - `start`: "random", when every window starts nearly even; or "local", when heads start on the pixels around the
      query, one each, as ConViT's do. It is for inputs after batch norm and ReLU, as in a bottleneck.
    """

    linear: ClassVar[Callable[..., Tensor]] = staticmethod(F.linear)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        num_heads: int = 8,
        *,
        positions: Positions = "relative",
        content: bool = True,
        share_positions: bool = True,
        border: Border = "mask",
        projections: Projections = "full",
        downsample: Downsample = "pool",
        bias: bool = False,
        start: Start = "random",
        backend: str | None = None,
    ) -> None:
        super().__init__()
        require_choice("positions", positions, get_args(Positions))
        require_choice("border", border, get_args(Border))
        require_choice("projections", projections, get_args(Projections))
        require_choice("downsample", downsample, get_args(Downsample))
        require_choice("start", start, get_args(Start))
        require_switch(content=content, share_positions=share_positions, bias=bias)
        require_backend(kernels.local.BACKENDS, backend)
        require_positive(in_channels=in_channels, kernel_size=kernel_size, stride=stride)
        self.head_dim = require_divisible(out_channels, num_heads, "out_channels")
        if positions == "relative" and self.head_dim % 2:
            raise ValueError(
                f"relative positions split a head's channels in two, but out_channels={out_channels} over "
                f"num_heads={num_heads} gives {self.head_dim}; use out_channels={2 * out_channels}, for example"
            )
        if start == "local" and (positions != "relative" or not has_room_for_local_start(self.head_dim, kernel_size)):
            raise ValueError(
                f"start='local' needs relative positions, at least {LOCAL_HEAD_DIM} channels a head and a window of "
                f"more than a pixel; got positions={positions!r}, {self.head_dim} channels (out_channels="
                f"{out_channels} over num_heads={num_heads}) and kernel_size={kernel_size}"
            )
        if projections == "grouped":
            require_divisible(in_channels, num_heads, "in_channels")
        self.in_channels, self.out_channels, self.num_heads = in_channels, out_channels, num_heads
        self.kernel_size, self.stride, self.downsample = kernel_size, stride, downsample
        self.border: Border = border
        self.start = start
        self.positions, self.content, self.projections, self.backend = positions, content, projections, backend

        parts = 3 if content else 2  # query, value and, with content, key: the order of checkpoints, see `packed`
        groups = num_heads if projections == "grouped" else 1
        self.weight = nn.Parameter(torch.empty(parts, out_channels, in_channels // groups))
        self.bias = nn.Parameter(torch.empty(parts, out_channels)) if bias else None
        if positions == "relative":
            sets = 1 if share_positions else num_heads
            self.row_embedding = nn.Parameter(torch.empty(sets, kernel_size, self.head_dim // 2))
            self.col_embedding = nn.Parameter(torch.empty(sets, kernel_size, self.head_dim // 2))
        else:
            self.register_parameter("row_embedding", None)
            self.register_parameter("col_embedding", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Not stated by the paper. Unit-variance inputs give logits of about unit variance: with no 1/√d in the
        equation, the query's weights carry it."""
        fan_in = self.weight.shape[-1]
        nn.init.normal_(self.weight, std=fan_in**-0.5)
        with torch.no_grad():
            self.weight[0].mul_(self.head_dim**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for embedding in (self.row_embedding, self.col_embedding):
            if embedding is not None:
                nn.init.normal_(embedding)
        if self.start == "local":
            self._look_around()

    @torch.no_grad()
    def _look_around(self) -> None:
        """Head h starts on the pixel Δ_h of those around the query, the nearest first; its own goes by the shortcut.

        −α‖δ − Δ‖² is −α‖δ‖² + 2α Δ·δ and a constant: two channels of each embedding hold δ² and δ, and the query's same
        channels the factors. A query has no bias to hold them, so they stand on what inputs after batch norm and ReLU
        have in the mean, 1/√(2π) in every channel.
        """
        offsets = window_offsets(self.kernel_size)
        around = torch.cartesian_prod(offsets, offsets)
        around = around[around.square().sum(-1).argsort(stable=True)][1:]  # without the query's own pixel
        centers = around[torch.arange(self.num_heads) % len(around)]
        level = math.sqrt(2 * math.pi) / self.weight.shape[-1]
        query, _, *key = self.weight.unflatten(1, (self.num_heads, self.head_dim))
        for axis, embedding in enumerate((self.row_embedding, self.col_embedding)):
            square, linear = axis * self.head_dim // 2, axis * self.head_dim // 2 + 1
            embedding[..., 0], embedding[..., 1] = offsets.square(), offsets
            query[:, square] = -LOCALITY * level
            query[:, linear] = 2 * LOCALITY * level * centers[:, axis, None]
            for one in key:
                one[:, square : linear + 1] = 0.0  # content leaves these channels to position

    def forward(self, x: Tensor, need_weights: bool = False):
        """x → y, or (y, weights [B, rows, cols, heads, k, k] of every query, before any pooling)."""
        require_images(x, self.in_channels, self.weight.dtype)
        pixels = x.permute(0, 2, 3, 1)
        if self.positions == "absolute":
            pixels = pixels + sinusoidal_positions(pixels.shape[1:], device=x.device, dtype=x.dtype)
        projected = self.project(pixels)
        stride = self.stride if self.downsample == "stride" else 1
        embeddings = (self.row_embedding, self.col_embedding)
        if not need_weights:
            out = kernels.local_attention(
                projected, *embeddings,
                kernel_size=self.kernel_size, stride=stride, border=self.border, backend=self.backend,
            )  # fmt: skip
            return self._finish(out)
        query, key, value = equations.query_key_value(projected)
        weights = equations.local_attention_weights(
            query[:, ::stride, ::stride], key, *embeddings,
            kernel_size=self.kernel_size, grid_size=(x.shape[2], x.shape[3]), stride=stride, border=self.border,
        )  # fmt: skip
        return self._finish(equations.apply_local_weights(weights, value, stride)), weights

    def project(self, pixels: Tensor) -> Tensor:
        """[B,H,W,in] → query, key (with content) and value side by side: [B,H,W,2 or 3,heads,d]."""
        weight = packed(self.weight)
        shape = (*pixels.shape[:3], len(weight), self.num_heads, self.head_dim)
        bias = None if self.bias is None else packed(self.bias).flatten()
        if self.projections == "full":
            return self.linear(pixels, weight.flatten(0, 1), bias).reshape(shape)
        grouped = pixels.unflatten(-1, (self.num_heads, -1))
        weight = weight.unflatten(1, (self.num_heads, self.head_dim))
        projected = torch.einsum("bhwni,pndi->bhwpnd", grouped, weight)
        return projected if bias is None else projected + bias.reshape(shape[3:])

    def _finish(self, out: Tensor) -> Tensor:
        y = out.flatten(3).permute(0, 3, 1, 2)
        if self.stride > 1 and self.downsample == "pool":
            # ceil_mode: an odd side gives as many outputs as a strided convolution would, from what the edge has.
            y = F.avg_pool2d(y, self.stride, self.stride, ceil_mode=True)
        return y

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"num_heads={self.num_heads}, positions={self.positions!r}, content={self.content}, "
            f"border={self.border!r}, projections={self.projections!r}"
        )


def packed(parameter: Tensor) -> Tensor:
    """Query, value and key, as checkpoints hold a parameter, in the order (query, key, value) of all projections.

    The copy is small beside the projection. The parameter keeps its order, or old checkpoints would load and be wrong.
    """
    if len(parameter) == 2:
        return parameter
    query, value, key = parameter.unbind(0)
    return torch.stack((query, key, value))


def sinusoidal_positions(shape: tuple[int, ...] | torch.Size, *, device=None, dtype=None) -> Tensor:
    """Fixed absolute positions [H, W, C]: the first half of the channels tells the row, the second the column."""
    height, width, channels = shape
    halves = []
    for length, size in ((height, channels // 2), (width, channels - channels // 2)):
        position = torch.arange(length, device=device, dtype=torch.float32)[:, None]
        frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10_000.0) / max(size, 1)))
        angle = position * frequency
        halves.append(torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :size])
    row = halves[0][:, None].expand(-1, width, -1)
    col = halves[1][None].expand(height, -1, -1)
    return torch.cat((row, col), dim=-1).to(dtype)
