"""Anchors, and the outputs of a detector that are relative to them. Builds without torchvision, which loads slowly."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class DetectorOutputs(NamedTuple):
    """Raw outputs, one tensor for each level, finest first. A level has N = rows·cols·A anchors."""

    class_logits: tuple[Tensor, ...]
    """[B, N, classes]."""
    box_regression: tuple[Tensor, ...]
    """[B, N, 4]: shift of the centre and logarithm of the size, relative to the anchor."""
    anchors: tuple[Tensor, ...]
    """[N, 4]: not learned, but what the regression is relative to."""


def anchor_sizes(scales_per_level: int, smallest: int = 32, num_levels: int = 5) -> tuple[tuple[int, ...], ...]:
    """Sides of the square anchors: doubling from level to level, `scales_per_level` steps within an octave."""
    octaves = [smallest * 2**level for level in range(num_levels)]
    return tuple(
        tuple(int(side * 2 ** (step / scales_per_level)) for step in range(scales_per_level)) for side in octaves
    )


def anchor_shapes(sides: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
    """Boxes [A, 4] around the origin in whole pixels: for each aspect (height / width) one of the area of each side."""
    side = torch.tensor(sides, dtype=torch.float32)
    heights = torch.tensor(aspect_ratios, dtype=torch.float32).sqrt()
    half_heights, half_widths = (torch.outer(share, side).flatten() / 2 for share in (heights, 1 / heights))
    return torch.stack((-half_widths, -half_heights, half_widths, half_heights), dim=1).round()


class AnchorGrid(nn.Module):
    """The anchors of every level of a pyramid; the shapes around one point are torchvision's to the bit.

    Level l has stride `strides[l]`, and position (row, col) stands at that many pixels times (row, col). torchvision
    divides image size by grid size instead, which differs where a stride does not divide the image: at 608 pixels the
    coarsest level's anchors would be 121 pixels apart under features that are 128 apart.
    """

    shapes: Tensor

    def __init__(
        self,
        sizes: Sequence[Sequence[int]] | None = None,
        aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        strides: Sequence[int] = (8, 16, 32, 64, 128),
    ) -> None:
        super().__init__()
        sizes = anchor_sizes(2) if sizes is None else sizes
        if len(sizes) != len(strides) or len({len(own) for own in sizes}) != 1:
            raise ValueError(f"sizes must name as many anchors for each of the {len(strides)} levels, not {sizes}")
        shapes = torch.stack([anchor_shapes(own, aspect_ratios) for own in sizes])
        self.strides, self.num_anchors = tuple(strides), len(sizes[0]) * len(aspect_ratios)
        # Whole numbers, kept as such: a model turned to half precision must not round its anchors.
        self.register_buffer("shapes", shapes.to(torch.int32), persistent=False)

    def forward(self, grid_sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        """For each level's (rows, cols): float [rows·cols·A, 4], A anchors of a position side by side."""
        levels = []
        device = self.shapes.device
        for (rows, cols), stride, shapes in zip(grid_sizes, self.strides, self.shapes, strict=True):
            row = (torch.arange(rows, device=device) * stride)[:, None].expand(rows, cols)
            col = (torch.arange(cols, device=device) * stride)[None, :].expand(rows, cols)
            centers = torch.stack((col, row, col, row), dim=-1).reshape(-1, 1, 4)
            levels.append((centers + shapes).reshape(-1, 4).float())
        return tuple(levels)

    def extra_repr(self) -> str:
        return f"num_anchors={self.num_anchors}, strides={self.strides}"
