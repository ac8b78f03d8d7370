"""Local attention on a CPU by loops that numba compiles (`numba_loops`, by way of `compiled_loops`).

Where numba cannot be loaded, the backend says so and the tiles of `cpu` run instead.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import compiled_loops
from ..compiled_loops import FLOATS, SUPPORTED_TYPES, as_float32, loading_trouble
from ..sizes import LANES
from . import cpu_operator
from .cpu_operator import cpu_backend
from .window import Embeddings, Window

LARGEST_MAP = 2**20  # numbers of a padded map when 16 images lie side by side: four megabytes
GATHERING = 1.5  # what a vector over images costs beside one along a row: its pixels lie far apart


class _Plan(NamedTuple):
    """How one call is cut: `by_image` says what the lanes of a vector are."""

    by_image: bool
    num_tasks: int
    map_size: int
    """Numbers of a padded map, all channels of a head."""
    row_size: int
    """Numbers of a padded map's row, one channel of it."""
    num_blocks: int
    """Vectors in a row."""


def _plan(projected: Tensor, kernel_size: int, mask: bool) -> _Plan:
    """Lanes along a row, or over images where that is less work: small maps leave most lanes of a row empty."""
    batch, height, width, _, num_heads, head_dim = projected.shape
    groups, blocks, margin = -(-batch // LANES), -(-width // LANES), kernel_size - 1

    def seen(length: int) -> int:
        """Keys that all queries of an axis see together."""
        before = margin // 2
        counts = (min(kernel_size, length - i + before) - max(0, before - i) for i in range(length))
        return sum(counts) if mask else length * kernel_size

    along_rows = batch * seen(height) * blocks * kernel_size
    over_images = groups * seen(height) * seen(width) * GATHERING
    rows, row_over_images, row = height + margin, (width + margin) * LANES, blocks * LANES + margin
    if over_images < along_rows and head_dim * rows * row_over_images <= LARGEST_MAP:
        return _Plan(True, groups * num_heads, head_dim * rows * row_over_images, row_over_images, width)
    return _Plan(False, batch * num_heads, head_dim * rows * row, row, blocks)


def _run(
    loop: str, tensors: list[Tensor], scratch_size: int, projected: Tensor, row: Tensor | None, kernel_size: int,
    mask: bool, plan: _Plan,
) -> None:  # fmt: skip
    """One of the compiled loops over all tasks; `numba_maps` says what a job is."""
    sizes = (*projected.shape, kernel_size, 1 if row is None else len(row))
    options = (mask, plan.by_image, row is not None)
    compiled_loops.run(loop, compiled_loops.Job(plan.num_tasks, scratch_size, sizes, options, kernel_size**2), tensors)


def _forward(projected: Tensor, row: Tensor | None, col: Tensor | None, kernel_size: int, mask: bool) -> Tensor:
    plan = _plan(projected, kernel_size, mask)
    output = torch.empty((*projected.shape[:3], *projected.shape[4:]), **FLOATS)
    vectors = projected.shape[5] + kernel_size * (1 + kernel_size + plan.num_blocks)
    tensors = [as_float32(projected), as_float32(row), as_float32(col), output]
    _run("forward", tensors, 2 * plan.map_size + vectors * LANES, projected, row, kernel_size, mask, plan)
    return output.to(projected.dtype)


def _backward(
    gradient: Tensor, projected: Tensor, row: Tensor | None, col: Tensor | None, kernel_size: int, mask: bool
) -> list[Tensor]:
    plan = _plan(projected, kernel_size, mask)
    num_heads, head_dim = projected.shape[4:]
    into_projected = torch.empty(projected.shape, **FLOATS)
    into_rows, into_cols = torch.empty(2, plan.num_tasks // num_heads, num_heads, kernel_size, head_dim // 2, **FLOATS)
    maps = 4 * plan.map_size + 2 * (head_dim + kernel_size**2) * plan.row_size
    vectors = head_dim + kernel_size * (3 + 2 * kernel_size + 2 * (head_dim // 2) + plan.num_blocks)
    inputs = [as_float32(x) for x in (projected, row, col, gradient)]
    tensors = [*inputs, into_projected, into_rows, into_cols]
    _run("backward", tensors, maps + vectors * LANES, projected, row, kernel_size, mask, plan)

    def share(embedding: Tensor | None, of_tasks: Tensor) -> Tensor:
        if embedding is None:
            return projected.new_empty(0)
        total = of_tasks.sum(dim=0) if len(embedding) > 1 else of_tasks.sum(dim=(0, 1))[None]
        return total.to(embedding.dtype)

    return [into_projected.to(projected.dtype), share(row, into_rows), share(col, into_cols)]


def refusal(projected: Tensor, embeddings: Embeddings, window: Window) -> str | None:
    """Why the compiled loops cannot run on these arguments, or None.

    With a stride all queries are computed and some are kept: still faster than the equation, which copies windows.
    """
    reason = cpu_operator.refusal(projected, embeddings, window._replace(stride=1))
    if reason is not None:
        return reason
    if projected.dtype not in SUPPORTED_TYPES:
        return f"the projection is {projected.dtype}; float32, bfloat16 or float16 is needed"
    return loading_trouble()


NUMBA = cpu_backend("numba", _forward, _backward, refusal)
