"""Colour operations for whole batches, each image with its own operation and strength, with Pillow's arithmetic.

Most of them map a channel's value to a value. They become one table of 256 entries per image and channel, so that a
batch in which every image wants something else costs one lookup. Images are float [B, 3, H, W], whole values 0..255.
"""

from __future__ import annotations

import torch
from torch import Tensor


def luma(images: Tensor) -> Tensor:
    """Pillow's grey value, whole numbers, [B, 1, H, W]."""
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1).to(images.dtype)


def blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """degenerate at factor 0, the image at 1, beyond it above 1; cut off and rounded down like Pillow's blend."""
    return torch.floor((degenerate + factor * (images - degenerate)).clamp(0, 255))


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


def posterize_table(values: Tensor, bits: Tensor) -> Tensor:
    """Keeps the upper `bits` (0 to 8) bits."""
    unit = torch.exp2(8 - bits)
    return torch.floor(values / unit) * unit


def solarize_table(values: Tensor, threshold: Tensor) -> Tensor:
    """Inverts from the threshold upwards."""
    return torch.where(values < threshold, values, 255 - values)


def solarize_add_table(values: Tensor, amount: Tensor) -> Tensor:
    """Brightens the darker half."""
    return torch.where(values < 128, (values + amount).clamp(max=255), values)


def contrast_table(images: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """Blends with the image's mean grey."""
    mean = torch.floor(luma(images).mean(dim=(1, 2, 3)) + 0.5).view(-1, 1, 1)
    return blend(mean, values, factor)


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
