"""RandAugment for whole batches: every image its own operation and strength.

Images are float [B, 3, H, W] with whole values 0..255, before and after. Two ways to the same result, bit for bit:
`apply_dense` computes every operation for every image and selects, without asking the device anything, for
accelerators and compiled graphs; `apply_sparse` computes only what is wanted, for eager CPUs.

Most colour operations map a channel's value to a value, with Pillow's arithmetic. They become one table of 256 entries
per image and channel, so that a batch in which every image wants something else costs one lookup.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearsight.images.batch_geometry import warp


def luma(images: Tensor) -> Tensor:
    """Pillow's grey value, whole numbers, [B, 1, H, W]."""
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1).to(images.dtype)


def blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """degenerate at factor 0, the image at 1, beyond it above 1; cut off and rounded down like Pillow's blend."""
    return torch.floor((degenerate + factor * (images - degenerate)).clamp(0, 255))


def mean_grey(images: Tensor) -> Tensor:
    """Whole numbers, [B, 1, 1, 1]. Sums are of whole numbers too: they do not depend on threads or devices."""
    total = luma(images).sum(dim=(1, 2, 3), keepdim=True, dtype=torch.int64)
    return torch.floor(total.to(images.dtype) / (images.shape[-2] * images.shape[-1]) + 0.5)


def lookup(images: Tensor, table: Tensor) -> Tensor:
    """Every value replaced by its entry in table [B, 3, 256]."""
    return table.gather(2, images.flatten(2).long()).view_as(images)


def histograms(images: Tensor) -> Tensor:
    """int32 [B, 3, 256]. Whole-number additions: the result does not depend on their order."""
    batch, channels = images.shape[:2]
    rows = torch.arange(batch * channels, device=images.device).view(batch, channels, 1) * 256
    flat = (images.flatten(2).long() + rows).flatten()
    counts = torch.zeros(batch * channels * 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add(0, flat, torch.ones_like(flat, dtype=torch.int32)).view(batch, channels, 256)


def equalize_table(images: Tensor, values: Tensor) -> Tensor:
    """Spreads each channel's values evenly; a channel with a single value stays."""
    counts = histograms(images)
    last = images.flatten(2).amax(dim=2, keepdim=True).long()
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, last)) // 255
    before = counts.cumsum(dim=2) - counts
    spread = (before + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, spread.clamp(max=255).to(values.dtype), values)


def autocontrast_table(images: Tensor, values: Tensor) -> Tensor:
    """Stretches each channel's darkest and brightest value to 0 and 255."""
    flat = images.flatten(2)
    low, high = flat.amin(dim=2, keepdim=True), flat.amax(dim=2, keepdim=True)
    stretched = torch.floor((values - low) * 255 / (high - low).clamp(min=1)).clamp(0, 255)
    return torch.where(high > low, stretched, values)


def keep_bits(values: Tensor, bits: Tensor) -> Tensor:
    """The upper `bits` (0 to 8) bits."""
    unit = torch.exp2(8 - bits)
    return torch.floor(values / unit) * unit


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with the grey image; factor [B, 1, 1, 1]."""
    return blend(luma(images), images, factor)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with the image smoothed by 3 × 3 (centre 5, others 1, over 13); the rim stays as it is."""
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return images
    centre = images[..., 1:-1, 1:-1]
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * centre
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = torch.floor(total / 13 + 0.5)
    return blend(smooth, images, factor)


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
    "autocontrast": lambda images, values, level, factor: autocontrast_table(images, values),
    "equalize": lambda images, values, level, factor: equalize_table(images, values),
    "invert": lambda images, values, level, factor: 255 - values,
    # At least one bit is kept: none would leave a black image.
    "posterize": lambda images, values, level, factor: keep_bits(values, 4 - torch.floor(level * 4).clamp(max=3)),
    "solarize": lambda images, values, level, factor: torch.where(
        values < 256 - torch.floor(level * 256), values, 255 - values
    ),
    "solarize_add": lambda images, values, level, factor: torch.where(
        values < 128, (values + torch.floor(level * 110)).clamp(max=255), values
    ),
    "contrast": lambda images, values, level, factor: blend(mean_grey(images)[..., 0], values, factor),
    "brightness": lambda images, values, level, factor: blend(torch.zeros_like(values), values, factor),
}
_FILTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"color": saturate, "sharpness": sharpen}


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


def _warped(images: Tensor, choice: Choice, fill: Tensor, interpolation: str) -> Tensor:
    maps = affine_of(choice, images.shape[-2], images.shape[-1])
    return torch.round(warp(images, maps, fill, interpolation)).clamp(0, 255)


def _recoloured(images: Tensor, choice: Choice) -> Tensor:
    """Every colour operation for every image, then the wanted one is kept; images that want none stay."""
    operation, level, factor = (value[:, None, None] for value in (choice.operation, choice.level, choice.factor))
    values = _values(images)
    table = values
    for name, make in _TABLES.items():
        table = torch.where(operation == CODE[name], make(images, values, level, factor), table)
    out = lookup(images, table)
    for name, apply in _FILTERS.items():
        out = torch.where(operation[..., None] == CODE[name], apply(images, factor[..., None]), out)
    return out


def apply_dense(images: Tensor, choice: Choice, fill: Tensor, interpolation: str) -> Tensor:
    """Every operation for every image, then the wanted one is kept: static shapes and no wait for the device."""
    moved = choice.operation == CODE[GEOMETRIC[0]]
    for name in GEOMETRIC[1:]:
        moved = moved | (choice.operation == CODE[name])
    warped = _warped(images, choice, fill, interpolation)
    return torch.where(moved[:, None, None, None], warped, _recoloured(images, choice))


def apply_sparse(images: Tensor, choice: Choice, fill: Tensor, interpolation: str) -> Tensor:
    """Each operation for the images that want it, in place. Sizes depend on the data, so this waits for the device."""
    operations = choice.operation.tolist()

    def rows_of(*names: str) -> Tensor:
        codes = [CODE[name] for name in names]
        return torch.tensor([row for row, code in enumerate(operations) if code in codes], dtype=torch.int64)

    for name, make in _TABLES.items():
        if len(rows := rows_of(name)):
            part, picked = images[rows], choice.at(rows)
            table = make(part, _values(part), picked.level[:, None, None], picked.factor[:, None, None])
            images[rows] = lookup(part, table.expand(len(rows), 3, 256))
    for name, apply in _FILTERS.items():
        if len(rows := rows_of(name)):
            images[rows] = apply(images[rows], choice.at(rows).factor[:, None, None, None])
    if len(rows := rows_of(*GEOMETRIC)):
        images[rows] = _warped(images[rows], choice.at(rows), fill, interpolation)
    return images
