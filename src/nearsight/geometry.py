"""Where pixels, patches and windows lie on an (H, W) grid.

One convention everywhere: an offset is **key minus query**, as (row, col). Patches are numbered row by row.
"""

import torch
from torch import Tensor

Grid = tuple[int, int]


def axis_offsets(length: int, *, device=None, dtype=torch.float32) -> Tensor:
    """δ along one axis: [query, key] = key − query, shape [length, length]."""
    position = torch.arange(length, device=device, dtype=dtype)
    return position[None, :] - position[:, None]


def grid_offsets(grid_size: Grid, *, device=None, dtype=torch.float32) -> Tensor:
    """δ_ij = (row, col) offset of every key patch j from every query patch i, shape [N, N, 2] with N = H·W."""
    height, width = grid_size
    row = axis_offsets(height, device=device, dtype=dtype)[:, None, :, None].expand(height, width, height, width)
    col = axis_offsets(width, device=device, dtype=dtype)[None, :, None, :].expand(height, width, height, width)
    return torch.stack((row, col), dim=-1).reshape(height * width, height * width, 2)


def grid_distances(grid_size: Grid, *, device=None, dtype=torch.float32) -> Tensor:
    """‖δ_ij‖ in patches, shape [N, N]."""
    return grid_offsets(grid_size, device=device, dtype=dtype).norm(dim=-1)


def relative_embeddings(grid_size: Grid, *, device=None, dtype=torch.float32) -> Tensor:
    """ConViT's fixed r_δ = (‖δ‖², δ_row, δ_col) of Eq. 5, shape [N, N, 3]."""
    offset = grid_offsets(grid_size, device=device, dtype=dtype)
    return torch.cat((offset.square().sum(-1, keepdim=True), offset), dim=-1)


def window_offsets(kernel_size: int, *, device=None) -> Tensor:
    """Offsets of a k-wide window from its query, shape [k]: −1, 0, 1 for k = 3 and 0, 1 for k = 2.

    An even window has one key more after the query than before it, as `nn.Conv2d(padding="same")` has.
    """
    return torch.arange(kernel_size, device=device) - (kernel_size - 1) // 2


def window_padding(kernel_size: int) -> tuple[int, int]:
    """How many keys a window needs before and after the image's edge."""
    before = (kernel_size - 1) // 2
    return before, kernel_size - 1 - before


def head_centers(num_heads: int, *, on_patches: bool = False) -> Tensor:
    """Δ^h of Eq. 5: where each head of a convolution-like layer looks, (row, col) offsets, shape [num_heads, 2].

    A square number of heads fills a √H × √H kernel, the row running fastest, as in the released ConViT. Any other
    number takes a kernel of ⌈√H⌉ and keeps the H centres nearest to the query (ties: the order of the full kernel), so
    that a layer of 6 heads has the query itself, its four neighbours and one corner.

    The centres of an even kernel lie half-way between patches: symmetric, but never a convolution, however strong
    the locality. `on_patches=True` moves them onto patches, by the rule of `window_offsets`.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, not {num_heads}")
    kernel_size = 1
    while kernel_size * kernel_size < num_heads:
        kernel_size += 1
    if on_patches:
        axis = window_offsets(kernel_size).to(torch.float32)
    else:
        axis = torch.arange(kernel_size, dtype=torch.float32) - (kernel_size - 1) / 2
    col, row = torch.meshgrid(axis, axis, indexing="ij")
    centers = torch.stack((row.flatten(), col.flatten()), dim=-1)
    if num_heads == kernel_size * kernel_size:
        return centers
    nearest = centers.square().sum(-1).argsort(stable=True)[:num_heads]
    return centers[nearest.sort().values]
