"""RandAugment for whole batches: every image its own operation and strength.

Images are float [B, 3, H, W] with whole values 0..255, before and after. Two ways to the same result, bit for bit:
`apply_dense` computes every operation for every image and selects, without asking the device anything, for
accelerators and compiled graphs; `apply_sparse` computes only what is wanted, for eager CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearsight.images import batch_color as color
from nearsight.images.augmentation import Interpolation
from nearsight.images.batch_geometry import warp

# An image's operation is a position here, in the order of timm's list; a declined operation becomes the last.
OPERATIONS = (
    *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add", "color", "contrast"),
    *("brightness", "sharpness", "shear_col", "shear_row", "translate_col", "translate_row", "identity"),
)
CODE = {name: code for code, name in enumerate(OPERATIONS)}
NUM_CHOICES = len(OPERATIONS) - 1
GEOMETRIC = ("rotate", "shear_col", "shear_row", "translate_col", "translate_row")


@dataclass(frozen=True)
class Choice:
    """What happens to each image."""

    operation: Tensor
    """int64 [B]: positions in OPERATIONS."""
    magnitude: Tensor
    """[B] in 0..10."""
    sign: Tensor
    """[B] of ±1: the direction, where an operation has two."""

    @property
    def level(self) -> Tensor:
        return self.magnitude / 10

    @property
    def factor(self) -> Tensor:
        """Of the enhancing operations: 1 changes nothing; 0.1 to 1.9."""
        return (1 + self.sign * self.level * 0.9).clamp(min=0.1)

    def at(self, rows: Tensor) -> Choice:
        return Choice(self.operation[rows], self.magnitude[rows], self.sign[rows])


Table = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# (images, values 0..255 [B, 3, 256], level [B, 1, 1], factor [B, 1, 1]) → table [B, 3, 256]
_TABLES: dict[str, Table] = {
    "autocontrast": lambda images, values, level, factor: color.autocontrast_table(images, values),
    "equalize": lambda images, values, level, factor: color.equalize_table(images, values),
    "invert": lambda images, values, level, factor: 255 - values,
    # At least one bit is kept: none would leave a black image.
    "posterize": lambda images, values, level, factor: color.posterize_table(
        values, 4 - torch.floor(level * 4).clamp(max=3)
    ),
    "solarize": lambda images, values, level, factor: color.solarize_table(values, 256 - torch.floor(level * 256)),
    "solarize_add": lambda images, values, level, factor: color.solarize_add_table(values, torch.floor(level * 110)),
    "contrast": lambda images, values, level, factor: color.contrast_table(images, values, factor),
    "brightness": lambda images, values, level, factor: color.blend(torch.zeros_like(values), values, factor),
}
_FILTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"color": color.saturate, "sharpness": color.sharpen}


def affine_of(choice: Choice, height: int, width: int) -> Tensor:
    """Inverse maps [B, 2, 3] in pixels from the centre for geometric operations, the identity for others.

    At magnitude 10: 30 degrees, a shear of 0.3, a shift by 45 % of the side.
    """
    strength = choice.sign * choice.level
    zero = torch.zeros_like(strength)

    def where(name: str, value: Tensor) -> Tensor:
        return torch.where(choice.operation == CODE[name], value, zero)

    angle = where("rotate", strength * math.radians(30))
    cosine, sine = torch.cos(angle), torch.sin(angle)
    # Pillow shears about the upper left corner: expressed about the centre, a shear also shifts.
    shear_col, shear_row = where("shear_col", strength * 0.3), where("shear_row", strength * 0.3)
    shift_col = where("translate_col", strength * 0.45 * width) + shear_col * (height / 2)
    shift_row = where("translate_row", strength * 0.45 * height) + shear_row * (width / 2)
    first = torch.stack([cosine, shear_col - sine, shift_col], dim=1)
    second = torch.stack([shear_row + sine, cosine, shift_row], dim=1)
    return torch.stack([first, second], dim=1)


def _values(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device, dtype=images.dtype).expand(images.shape[0], 3, 256)


def _warped(images: Tensor, choice: Choice, fill: Tensor, interpolation: Interpolation) -> Tensor:
    maps = affine_of(choice, images.shape[-2], images.shape[-1])
    return torch.round(warp(images, maps, fill, interpolation)).clamp(0, 255)


def _recoloured(images: Tensor, choice: Choice) -> Tensor:
    """Every colour operation for every image, then the wanted one is kept; images that want none stay."""
    operation, level, factor = (value[:, None, None] for value in (choice.operation, choice.level, choice.factor))
    values = _values(images)
    table = values
    for name, make in _TABLES.items():
        table = torch.where(operation == CODE[name], make(images, values, level, factor), table)
    out = color.lookup(images, table)
    for name, apply in _FILTERS.items():
        out = torch.where(operation[..., None] == CODE[name], apply(images, factor[..., None]), out)
    return out


def apply_dense(images: Tensor, choice: Choice, fill: Tensor, interpolation: Interpolation) -> Tensor:
    """Every operation for every image, then the wanted one is kept: static shapes and no wait for the device."""
    moved = choice.operation == CODE[GEOMETRIC[0]]
    for name in GEOMETRIC[1:]:
        moved = moved | (choice.operation == CODE[name])
    warped = _warped(images, choice, fill, interpolation)
    return torch.where(moved[:, None, None, None], warped, _recoloured(images, choice))


def apply_sparse(images: Tensor, choice: Choice, fill: Tensor, interpolation: Interpolation) -> Tensor:
    """Each operation for the images that want it. Sizes depend on the data, so this waits for the device."""
    out = images.clone()

    def rows_of(*names: str) -> Tensor:
        return torch.isin(choice.operation, torch.tensor([CODE[name] for name in names])).nonzero().squeeze(1)

    for name, make in _TABLES.items():
        if len(rows := rows_of(name)):
            part, picked = images[rows], choice.at(rows)
            table = make(part, _values(part), picked.level[:, None, None], picked.factor[:, None, None])
            out[rows] = color.lookup(part, table.expand(len(rows), 3, 256))
    for name, apply in _FILTERS.items():
        if len(rows := rows_of(name)):
            out[rows] = apply(images[rows], choice.at(rows).factor[:, None, None, None])
    if len(rows := rows_of(*GEOMETRIC)):
        out[rows] = _warped(images[rows], choice.at(rows), fill, interpolation)
    return out
