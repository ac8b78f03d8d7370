"""Crops, flips, warps and erasing for whole batches: static shapes, no loop over images, no wait for the device.

Legend: B images, C = 3 channels, H × W pixels in, S × S out. `unit` tensors hold uniform numbers in [0, 1) per image.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nearsight.randomness import hash32, scramble32, to_unit

CROP_TRIES = 10
ERASE_TRIES = 10
NOISE_SLOT = 1 << 20  # far from the slots of the other draws


@torch.library.custom_op("nearsight::sample_image", mutates_args=())
def sample_image(images: Tensor, grid: Tensor, mode: str, padding_mode: str) -> Tensor:
    """`F.grid_sample` as one operator, because torch spends minutes compiling its bicubic form and gains nothing."""
    return F.grid_sample(images, grid, mode=mode, padding_mode=padding_mode, align_corners=False)


@sample_image.register_fake
def _(images: Tensor, grid: Tensor, mode: str, padding_mode: str) -> Tensor:
    return images.new_empty(*images.shape[:2], *grid.shape[1:3])


def may_ask(tensor: Tensor) -> bool:
    """Whether control flow may depend on values: on an eager CPU that saves work, elsewhere it would stall."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _first_fit(fits: Tensor, *candidates: Tensor) -> tuple[Tensor, ...]:
    """Per row the candidate [B, K] at the first True of `fits` [B, K] (column 0 where there is none)."""
    first = fits.to(torch.int8).argmax(dim=1, keepdim=True)
    return tuple(candidate.gather(1, first).squeeze(1) for candidate in candidates)


def crop_boxes(
    unit: Tensor, scale: tuple[float, float], ratios: tuple[float, float], height: int, width: int
) -> Tensor:
    """Random boxes (top, left, height, width) float [B, 4]: area and log-aspect uniform, whole pixels, inside.

    unit: [B, 2 * CROP_TRIES + 2]. As in torchvision, up to ten draws; where none fits, the largest centred box whose
    aspect is allowed.
    """
    low, high = scale
    area = height * width * (low + (high - low) * unit[:, :CROP_TRIES])
    log_low, log_high = (math.log(ratio) for ratio in ratios)
    ratio = torch.exp(log_low + (log_high - log_low) * unit[:, CROP_TRIES : 2 * CROP_TRIES])
    box_width, box_height = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
    fits = (box_width >= 1) & (box_width <= width) & (box_height >= 1) & (box_height <= height)
    some = fits.any(dim=1)
    box_height, box_width = _first_fit(fits, box_height, box_width)
    aspect = min(max(width / height, ratios[0]), ratios[1])
    box_height = torch.where(some, box_height, float(min(height, round(width / aspect))))
    box_width = torch.where(some, box_width, float(min(width, round(height * aspect))))
    place_row = torch.where(some, unit[:, -2], 0.5)
    place_col = torch.where(some, unit[:, -1], 0.5)
    top = torch.floor(place_row * (height - box_height + 1))
    left = torch.floor(place_col * (width - box_width + 1))
    return torch.stack([top, left, box_height, box_width], dim=1)


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, size: int, interpolation: str) -> Tensor:
    """Boxes [B, 4] of float images [B, C, H, W], resized to S × S, mirrored where flip [B] is True.

    Sampling is by points, without a low-pass filter: meant for boxes not much larger than the output.
    """
    height, width = images.shape[-2:]
    steps = (torch.arange(size, device=images.device, dtype=torch.float32) + 0.5) / size
    top, left, box_height, box_width = boxes.unbind(1)
    rows = (top[:, None] + steps * box_height[:, None]) * (2 / height) - 1
    along = torch.where(flip[:, None], 1 - steps, steps)
    cols = (left[:, None] + along * box_width[:, None]) * (2 / width) - 1
    batch = images.shape[0]
    grid = torch.stack([cols[:, None, :].expand(batch, size, size), rows[:, :, None].expand(batch, size, size)], dim=-1)
    return sample_image(images, grid, interpolation, "border")


def pad_crop(images: Tensor, unit: Tensor, flip: Tensor, padding: int, size: int) -> Tensor:
    """Pad with black, take S × S at a random place (unit [B, 2]), mirror where flip. Exact: pixels are only moved."""
    batch, _, height, width = images.shape
    steps = torch.arange(size, device=images.device)
    top = torch.floor(unit[:, :1] * (height + 2 * padding - size + 1)).long() - padding
    left = torch.floor(unit[:, 1:] * (width + 2 * padding - size + 1)).long() - padding
    rows = top + steps
    cols = left + torch.where(flip[:, None], size - 1 - steps, steps)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((cols >= 0) & (cols < width))[:, None, :]
    flat = rows.clamp(0, height - 1)[:, :, None] * width + cols.clamp(0, width - 1)[:, None, :]
    taken = images.flatten(2).gather(2, flat.view(batch, 1, -1).expand(-1, images.shape[1], -1))
    return torch.where(inside[:, None], taken.view(batch, -1, size, size), 0)


def warp(images: Tensor, inverse: Tensor, fill: Tensor, interpolation: str) -> Tensor:
    """Each image through its affine map; what comes from outside is `fill` (one value per channel).

    inverse: [B, 2, 3] takes an output pixel's offset (col, row, 1) from the image's centre to the input's, in pixels.
    """
    height, width = images.shape[-2:]
    device = images.device
    col = torch.arange(width, device=device, dtype=torch.float32) - (width - 1) / 2
    row = torch.arange(height, device=device, dtype=torch.float32) - (height - 1) / 2
    coefficient = inverse[:, :, :, None, None]  # [B, 2, 3, 1, 1]
    source = coefficient[:, :, 0] * col + coefficient[:, :, 1] * row[:, None] + coefficient[:, :, 2]  # [B, 2, H, W]
    grid = torch.stack([source[:, 0] * (2 / width), source[:, 1] * (2 / height)], dim=-1)
    background = fill.view(1, -1, 1, 1)
    return sample_image(images - background, grid, interpolation, "zeros") + background


def erase_boxes(unit: Tensor, chance: float, area_share: tuple[float, float], height: int, width: int) -> Tensor:
    """Random rectangles (top, left, height, width) [B, 4], of height 0 where the `chance` decides against erasing.

    unit: [B, 2 * ERASE_TRIES + 3]. Area uniform, aspect log-uniform in 0.3 … 1 / 0.3, smaller than the image.
    """
    low, high = area_share
    area = height * width * (low + (high - low) * unit[:, :ERASE_TRIES])
    bound = math.log(0.3)
    ratio = torch.exp(bound - 2 * bound * unit[:, ERASE_TRIES : 2 * ERASE_TRIES])
    box_height, box_width = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
    fits = (box_height < height) & (box_width < width)
    wanted = fits.any(dim=1) & (unit[:, -3] < chance)
    box_height, box_width = _first_fit(fits, box_height, box_width)
    top = torch.floor(unit[:, -2] * (height - box_height + 1))
    left = torch.floor(unit[:, -1] * (width - box_width + 1))
    return torch.stack([top, left, torch.where(wanted, box_height, 0.0), box_width], dim=1)


def inside_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boolean [B, 1, H, W]: pixels within the boxes (top, left, height, width)."""
    row = torch.arange(height, device=boxes.device)
    col = torch.arange(width, device=boxes.device)
    top, left, box_height, box_width = (value[:, None] for value in boxes.unbind(1))
    rows = (row >= top) & (row < top + box_height)
    cols = (col >= left) & (col < left + box_width)
    return (rows[:, :, None] & cols[:, None, :])[:, None]


def pixel_noise(keys: Tensor, places: Tensor) -> Tensor:
    """Standard normal noise [B, *places.shape] from the images' keys and the numbers of the places in an image."""
    positions = hash32(places.flatten())
    # Hashed positions and hashed keys, combined by one round: as good as hashing each pair, at a quarter of the cost.
    bits = scramble32(hash32(keys, NOISE_SLOT)[:, None] ^ positions)
    return normal_from_unit(to_unit(bits)).view(-1, *places.shape)


def normal_from_unit(unit: Tensor) -> Tensor:
    """Uniform [0, 1) to standard normal. The offset keeps off −1, where the quantile is infinite."""
    return torch.erfinv(2 * unit - 1 + 2.0**-24) * math.sqrt(2.0)
