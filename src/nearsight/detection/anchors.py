"""Anchors, and which of them answer for which box.

A box is (left, top, right, bottom) in pixels of the padded image, as in torchvision.
Shapes: B images, M boxes of the fullest image, N anchors over all levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import box_iou

NO_BOX = -1  # label of the places that fill up an image with fewer boxes than M
BACKGROUND, UNDECIDED = -1, -2  # matches of anchors that answer for no box; as in torchvision's Matcher


class BoxTargets(NamedTuple):
    """What detectors learn from, in tensors of fixed shape."""

    boxes: Tensor
    """float [B, M, 4]."""
    labels: Tensor
    """int64 [B, M]: the class, or NO_BOX."""


def pad_targets(boxes: Sequence[Tensor], labels: Sequence[Tensor], num_places: int | None = None) -> BoxTargets:
    """Boxes [m, 4] and labels [m] of each image as one batch with `num_places` for each (by default the largest m)."""
    most = max((len(own) for own in boxes), default=0)
    places = most if num_places is None else num_places
    if most > places:
        raise ValueError(f"an image has {most} boxes, but there are places for {places}")
    device = boxes[0].device if boxes else None
    padded = torch.zeros(len(boxes), places, 4, device=device)
    marks = torch.full((len(boxes), places), NO_BOX, dtype=torch.int64, device=device)
    for index, (own, own_labels) in enumerate(zip(boxes, labels, strict=True)):
        padded[index, : len(own)] = own
        marks[index, : len(own)] = own_labels
    return BoxTargets(padded, marks)


def anchor_sizes(scales_per_level: int, smallest: int = 32, num_levels: int = 5) -> tuple[tuple[int, ...], ...]:
    """Sides of the square anchors: doubling from level to level, `scales_per_level` steps within an octave."""
    octaves = [smallest * 2**level for level in range(num_levels)]
    return tuple(
        tuple(int(side * 2 ** (step / scales_per_level)) for step in range(scales_per_level)) for side in octaves
    )


class AnchorGrid(nn.Module):
    """The anchors of every level of a pyramid; the shapes around one point are torchvision's.

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
        shapes = AnchorGenerator(tuple(map(tuple, sizes)), (tuple(aspect_ratios),) * len(sizes)).cell_anchors
        self.strides, self.num_anchors = tuple(strides), len(sizes[0]) * len(aspect_ratios)
        # Whole numbers, kept as such: a model turned to half precision must not round its anchors.
        self.register_buffer("shapes", torch.stack([shape.to(torch.int32) for shape in shapes]), persistent=False)

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


@torch.no_grad()
def match_anchors(anchors: Tensor, targets: BoxTargets, foreground: float = 0.5, background: float = 0.4) -> Tensor:
    """int64 [B, N]: for each anchor the box it answers for, BACKGROUND, or UNDECIDED.

    An anchor answers for the box it overlaps most if that overlap (IoU) is at least `foreground`, and for nothing below
    `background`. The anchors that overlap a box more than all others answer for a box however small the overlap is.
    torchvision's Matcher, without shapes that depend on values, so that a training step can be captured whole. One
    departure: where no anchor touches a box, its Matcher gives the box to every anchor.
    """
    real = targets.labels >= 0
    if targets.boxes.shape[1] == 0:
        return torch.full((len(real), len(anchors)), BACKGROUND, dtype=torch.int64, device=anchors.device)
    overlap = box_iou(targets.boxes.float().flatten(0, 1), anchors).unflatten(0, real.shape)  # [B, M, N]
    overlap = overlap.masked_fill(~real[..., None], -1.0)
    best_overlap, best_box = overlap.max(dim=1)
    match = best_box.masked_fill(best_overlap < foreground, UNDECIDED)
    match = match.masked_fill(best_overlap < background, BACKGROUND)
    most = overlap.amax(dim=2, keepdim=True)
    closest = ((overlap == most) & (most > 0)).any(dim=1)
    return torch.where(closest, best_box, match)
