"""From images to tokens: patches at once, or a few strided convolutions; and positions for grids of another size."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..geometry import Grid
from ..kernels.dispatch import known_equal


class PatchEmbed(nn.Module):
    """A convolution whose stride is its extent cuts the image into patches: [B, C, H, W] → tokens [B, N, width]."""

    def __init__(self, patch_size: int, in_chans: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvPatchEmbed(nn.Module):
    """The same grid of tokens from a few strided 3×3 convolutions: [B, C, H, W] → [B, N, width].

    Neither paper has it. Halving the image step by step instead of cutting it at once helps where pictures are few.
    """

    def __init__(self, patch_size: int, in_chans: int, width: int) -> None:
        super().__init__()
        num_halvings = patch_size.bit_length() - 1
        if patch_size < 2 or 2**num_halvings != patch_size:
            raise ValueError(f"stem='conv' halves the image step by step; patch_size={patch_size} is no power of two")
        layers: list[nn.Module] = []
        channels = in_chans
        for step in range(num_halvings + 1):  # one layer at full size, then one for each halving
            out = max(width >> (num_halvings - step), 1)
            layers += [
                nn.Conv2d(channels, out, 3, stride=1 if step == 0 else 2, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            channels = out
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, width, 1))

    def forward(self, images: Tensor) -> Tensor:
        # Laid out as tokens too: as a mere view they would keep the maps' order, and every residual sum after them.
        return self.layers(images).flatten(2).transpose(1, 2).contiguous()


def resampled_positions(positions: Tensor, grid_size: Grid, wanted: Grid, num_prefix_tokens: int) -> Tensor:
    """Position embedding [1, prefix + H·W, C] of a grid → of the `wanted` grid, bicubic as in timm; prefixes stay.

    Resampling to the same grid changes nothing, so it is left out where the two are known to be the same.
    """
    if known_equal(wanted, grid_size):
        return positions
    prefix, patches = positions[:, :num_prefix_tokens], positions[:, num_prefix_tokens:]
    maps = patches.float().reshape(1, *grid_size, -1).permute(0, 3, 1, 2)
    maps = F.interpolate(maps, size=wanted, mode="bicubic", antialias=True)
    patches = maps.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)
    return torch.cat((prefix, patches), dim=1) if num_prefix_tokens else patches
