"""One attention layer at work on true activations: its maps, whole and in parts.

A view keeps a layer's queries, keys and values (small) and builds maps (large) only when asked, so that whoever walks
through a model holds the maps of one layer at a time.

Shapes: B images, n heads, T tokens = prefix (class, distillation, register) tokens first, then N = H·W patches row by
row; I×J queries and a k×k window for local layers.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nearsight import functional as equations
from nearsight.functional import Border
from nearsight.geometry import Grid, window_offsets

Kind = Literal["plain", "psa", "gpsa", "local"]
Part = Literal["mixed", "content", "position"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalView:
    """A layer that attends over the whole grid: plain, PSA (ConViT Eq. 4) or GPSA (Eq. 7)."""

    index: int
    name: str
    kind: Kind
    grid_size: Grid
    num_prefix_tokens: int
    query: Tensor  # [B, n, T, d]
    key: Tensor
    value: Tensor
    scale: float
    v_pos: Tensor | None = None  # [n, 3] over (‖δ‖², δ_row, δ_col)
    gate: Tensor | None = None  # λ [n]

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    @property
    def gate_value(self) -> Tensor | None:
        """σ(λ) of each head: its share of attention paid to position. None where there is no gate."""
        return None if self.gate is None else self.gate.sigmoid()

    def weights(self) -> Tensor:
        """The map the layer uses, over all tokens: [B, n, T, T], rows sum to one."""
        query, key = self.query.float(), self.key.float()
        if self.v_pos is None:
            return equations.attention_weights(query, key, scale=self.scale)
        v_pos, grid_size, scale = self.v_pos.float(), self.grid_size, self.scale
        if self.gate is None:
            return equations.positional_self_attention_weights(query, key, v_pos, grid_size=grid_size, scale=scale)
        return equations.gated_positional_attention_weights(
            query, key, v_pos, self.gate.float(), grid_size=grid_size, scale=scale
        )

    def patch_weights(self, part: Part = "mixed") -> Tensor:
        """A map between patches alone: [B, n, N, N], rows sum to one.

        Prefix tokens have no place on the grid, so their rows and columns are left out and the rows that remain are
        divided by what they keep. `part` "content" is softmax(QKᵀ) alone, "position" softmax(v_posᵀ r) alone (no
        batch axis: expanded).
        """
        if part == "position":
            if self.v_pos is None:
                raise ValueError(f"{self.name} is a plain layer: it has no positional map")
            position = equations.positional_weights(self.v_pos.float(), self.grid_size)
            return position.expand(self.query.shape[0], -1, -1, -1)
        if part == "content" and self.v_pos is not None:
            weights = equations.attention_weights(self.query.float(), self.key.float(), scale=self.scale)
        else:
            weights = self.weights()
        return drop_prefix(weights, self.num_prefix_tokens)


def drop_prefix(weights: Tensor, num_prefix_tokens: int) -> Tensor:
    """[..., T, T] → [..., N, N]: rows and columns of prefix tokens out, the other rows renormalised."""
    if num_prefix_tokens == 0:
        return weights
    patches = weights[..., num_prefix_tokens:, num_prefix_tokens:]
    return patches / patches.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(patches.dtype).tiny)


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalView:
    """A layer that attends within a k×k window (SASA Eq. 3)."""

    index: int
    name: str
    grid_size: Grid  # of the keys
    kernel_size: int
    stride: int  # between queries
    border: Border
    query: Tensor  # [B, I, J, n, d]
    key: Tensor | None
    value: Tensor  # [B, H, W, n, d]
    row_embedding: Tensor | None
    col_embedding: Tensor | None
    kind: Kind = "local"

    @property
    def num_heads(self) -> int:
        return self.query.shape[3]

    @property
    def gate_value(self) -> None:
        return None

    def weights(self, part: Part = "mixed") -> Tensor:
        """[B, I, J, n, k, k], each window sums to one; "content" and "position" are the softmax of one term alone."""
        key = None if part == "position" or self.key is None else self.key.float()
        with_position = part != "content" and self.row_embedding is not None and self.col_embedding is not None
        if key is None and not with_position:
            raise ValueError(f"{self.name} has no {part} term")
        return equations.local_attention_weights(
            self.query.float(),
            key,
            self.row_embedding.float() if with_position else None,  # type: ignore[union-attr]
            self.col_embedding.float() if with_position else None,  # type: ignore[union-attr]
            kernel_size=self.kernel_size,
            grid_size=self.grid_size,
            stride=self.stride,
            border=self.border,
        )

    def inside_weights(self, part: Part = "mixed") -> Tensor:
        """As `weights`, over keys inside the image alone (border "zeros" leaves some weight outside), renormalised."""
        weights = self.weights(part)
        if self.border == "mask":
            return weights
        weights = weights * self.inside()[None, :, :, None]
        return weights / weights.sum(dim=(-2, -1), keepdim=True)

    def inside(self) -> Tensor:
        """Which keys of each window lie in the image, bool [I, J, k, k]."""
        return equations.windows_inside(self.grid_size, self.kernel_size, self.stride, device=self.query.device)

    def offsets(self) -> Tensor:
        """(row, col) offsets of the window's keys from the query, float [k, k, 2]."""
        axis = window_offsets(self.kernel_size, device=self.query.device).float()
        row, col = torch.meshgrid(axis, axis, indexing="ij")
        return torch.stack((row, col), dim=-1)


View = GlobalView | LocalView


def patch_map(view: View, part: Part = "mixed") -> Tensor:
    """The map of either kind of layer, with what has no place on the grid left out."""
    return view.patch_weights(part) if isinstance(view, GlobalView) else view.inside_weights(part)
