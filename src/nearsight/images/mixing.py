"""Mixup and cutmix of whole batches on any device, a pure function of (seed, step, position in the global batch)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.images.batch_geometry import inside_boxes, may_ask
from nearsight.randomness import hash32, to_unit

_TABLE = 1024


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixup and cutmix with soft targets."""

    mixup: float = 0.8
    """α of mixup's Beta(α, α); 0 turns mixup off."""
    cutmix: float = 1.0
    """α of cutmix's Beta(α, α); 0 turns cutmix off."""
    prob: float = 1.0
    """Probability that a group is mixed at all."""
    switch: float = 0.5
    """Probability of cutmix rather than mixup where both are on."""
    smoothing: float = 0.1
    """Label smoothing."""
    group: int = 16
    """Images that share one λ and find their partners among themselves. Partners depend on the position in the global
    batch only: any number of processes and micro-batches whose size is a multiple of `group` gives the same result."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), got {self.smoothing}")
        if self.group < 2 or self.group % 2:
            raise ValueError(f"group must be even and at least 2, got {self.group}")


def beta_quantiles(alpha: float, entries: int = _TABLE) -> np.ndarray:
    """A table from which `beta_from_unit` draws Beta(α, α): t = x^α at evenly spaced probabilities up to one half.

    With x = t^(1/α), the density x^(α−1) (1−x)^(α−1) dx becomes (1−x)^(α−1) dt / α, which is smooth even for α < 1,
    so trapezoids and linear interpolation are exact enough. The upper half follows by symmetry.
    """
    t = np.linspace(0, 0.5**alpha, 8 * entries + 1)
    density = (1 - t ** (1 / alpha)) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0, mass[-1], entries + 1), mass, t)


def beta_from_unit(unit: Tensor, table: Tensor, alpha: float) -> Tensor:
    """Uniform [0, 1) to Beta(α, α)."""
    lower = torch.minimum(unit, 1 - unit) * (2 * (len(table) - 1))
    left = lower.floor().clamp(max=len(table) - 2)
    index = left.long()
    t = torch.lerp(table[index], table[index + 1], lower - left)
    x = t.clamp(min=0) ** (1 / alpha)
    return torch.where(unit < 0.5, x, 1 - x)


class BatchMix(nn.Module):
    """Float images [B, 3, H, W] and labels int64 [B] → mixed images and soft targets float32 [B, num_classes].

    The global batch is cut into groups of `mixing.group`. A group has one λ and one choice of mixup or cutmix, from
    (seed, step, number of the group); image i of a group is mixed with image i + group / 2, modulo the group, so pairs
    are mixed both ways, and neighbours (copies of one image under repeated augmentation) never meet. `first` is the
    position of the batch's first image in the global batch; it and B must be multiples of the group.
    """

    mixup_table: Tensor
    cutmix_table: Tensor

    def __init__(self, mixing: Mixing, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"soft targets need at least two classes, got {num_classes}")
        self.mixing, self.num_classes = mixing, num_classes
        for name, alpha in (("mixup_table", mixing.mixup), ("cutmix_table", mixing.cutmix)):
            table = beta_quantiles(alpha or 1.0)
            self.register_buffer(name, torch.from_numpy(table).float(), persistent=False)

    def forward(
        self, images: Tensor, labels: Tensor, seed: int | Tensor, step: int | Tensor, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        mixing, batch = self.mixing, images.shape[0]
        group = mixing.group
        if batch % group or first % group:
            raise ValueError(
                f"a batch of {batch} images from position {first} is not made of whole groups of {group}; "
                f"choose a batch per process that is a multiple of the mixing group, or a smaller group"
            )
        position = torch.arange(batch, device=images.device)
        numbers = (position + first) // group  # of the groups
        draws = torch.arange(5, device=images.device)
        unit = to_unit(hash32(seed, step, numbers[:, None], draws))  # [B, 5], equal within a group
        active, switch, share, row, col = unit.unbind(1)
        use_cutmix = self._use_cutmix(switch)
        lam = torch.where(
            use_cutmix,
            beta_from_unit(share, self.cutmix_table, mixing.cutmix or 1.0),
            beta_from_unit(share, self.mixup_table, mixing.mixup or 1.0),
        )
        on = active < (mixing.prob if mixing.mixup or mixing.cutmix else 0.0)
        lam = torch.where(on, lam, 1.0)
        partner = position - position % group + (position + group // 2) % group
        mixed, lam = self._mix(images, partner, lam, use_cutmix & on, row, col)
        targets = self._smooth(labels)
        share_kept = lam[:, None]
        return mixed, share_kept * targets + (1 - share_kept) * targets[partner]

    def _use_cutmix(self, switch: Tensor) -> Tensor:
        if self.mixing.mixup and self.mixing.cutmix:
            return switch < self.mixing.switch
        return torch.full_like(switch, bool(self.mixing.cutmix), dtype=torch.bool)

    def _mix(
        self, images: Tensor, partner: Tensor, lam: Tensor, use_cutmix: Tensor, row: Tensor, col: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mixed images, and λ corrected to the area that a cut-off rectangle really leaves."""
        height, width = images.shape[-2:]
        cut = torch.sqrt(1 - lam)
        box_height, box_width = torch.floor(height * cut), torch.floor(width * cut)
        # Centres are uniform over the image; what juts out is cut off.
        top = torch.floor(row * height) - torch.floor(box_height / 2)
        left = torch.floor(col * width) - torch.floor(box_width / 2)
        bottom, right = (top + box_height).clamp(max=height), (left + box_width).clamp(max=width)
        top, left = top.clamp(min=0), left.clamp(min=0)
        box = torch.stack([top, left, bottom - top, right - left], dim=1)
        kept = 1 - (box[:, 2] * box[:, 3]) / (height * width)
        weight = lam.view(-1, 1, 1, 1).to(images.dtype)
        if may_ask(images):
            mixed = self._mix_by_group(images, weight, use_cutmix, box)
        else:
            other = images[partner]
            pasted = torch.where(inside_boxes(box, height, width), other, images)
            blended = images + (1 - weight) * (other - images)  # exactly the image itself at λ = 1
            mixed = torch.where(use_cutmix.view(-1, 1, 1, 1), pasted, blended)
        return mixed, torch.where(use_cutmix, kept, lam)

    def _mix_by_group(self, images: Tensor, weight: Tensor, use_cutmix: Tensor, box: Tensor) -> Tensor:
        """The same of each group at a time, and of mixup and cutmix only what the group has: less work for a CPU."""
        group = self.mixing.group
        mixed = torch.empty_like(images)
        for start in range(0, len(images), group):
            here = slice(start, start + group)
            out, own, other = mixed[here], images[here], images[here].roll(-(group // 2), dims=0)
            if use_cutmix[start]:
                top, left, height, width = box[start].long().tolist()
                inside = (..., slice(top, top + height), slice(left, left + width))
                out.copy_(own)
                out[inside] = other[inside]
            else:
                torch.sub(other, own, out=out).mul_(1 - weight[here]).add_(own)
        return mixed

    def _smooth(self, labels: Tensor) -> Tensor:
        off = self.mixing.smoothing / self.num_classes
        hot = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
        return torch.where(hot, 1 - self.mixing.smoothing + off, off)
