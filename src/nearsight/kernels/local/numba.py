"""Local attention on a CPU by loops that numba compiles (`numba_loops`).

The first call on a machine compiles them; later processes read them from numba's cache on the disk. Where numba cannot
be loaded, the backend says so and the tiles of `cpu` run instead.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..later import constant_when_compiled
from ..sizes import LANES
from . import cpu_operator
from .cpu_operator import cpu_backend
from .window import Embeddings, Window

LARGEST_MAP = 2**20  # numbers of a padded map when 16 images lie side by side: four megabytes
GATHERING = 1.5  # what a vector over images costs beside one along a row: its pixels lie far apart
SUPPORTED_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def _loops() -> Any:
    """The compiled loops; an ImportError where numba is missing or does not go with the other libraries."""
    return import_module(f"{__package__}.numba_loops")


@constant_when_compiled  # imports cannot be traced
def _loading_trouble() -> str | None:
    try:
        _loops()
    except ImportError as error:
        return f"numba cannot be loaded ({error})"
    return None


class _Plan(NamedTuple):
    """How one call is cut: `by_image` says what the lanes of a vector are."""

    by_image: bool
    num_tasks: int
    map_size: int
    """Numbers of a padded map, all channels of a head."""
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
    map_over_images = head_dim * (height + margin) * (width + margin) * LANES
    if over_images < along_rows and map_over_images <= LARGEST_MAP:
        return _Plan(True, groups * num_heads, map_over_images, width)
    return _Plan(False, batch * num_heads, head_dim * (height + margin) * (blocks * LANES + margin), blocks)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of one process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="nearsight-local-attention")


def _in_threads(work: Callable[[int, int], None], num_tasks: int) -> None:
    """work(first, last) over all tasks, on as many threads as torch has. Which thread does which changes no bit."""
    threads = min(torch.get_num_threads(), num_tasks)
    cuts = [num_tasks * number // threads for number in range(threads + 1)]
    parts = list(pairwise(cuts))
    others = [_pool(os.getpid(), threads).submit(work, *part) for part in parts[1:]]
    work(*parts[0])
    for other in others:
        other.result()


def _flat(tensor: Tensor | None) -> np.ndarray:
    """The tensor's numbers as float32, in memory's order."""
    if tensor is None:
        return np.empty(0, np.float32)
    return tensor.detach().to(torch.float32).contiguous().numpy().reshape(-1)


def _arguments(projected: Tensor, row: Tensor | None, col: Tensor | None, kernel_size: int) -> tuple:
    sets = 1 if row is None else len(row)
    return (_flat(projected), _flat(row), _flat(col)), (*projected.shape, kernel_size, sets)


def _scratch(num_maps: int, num_vectors: int, plan: _Plan) -> np.ndarray:
    return np.zeros(num_maps * plan.map_size + num_vectors * LANES, np.float32)


def _forward(projected: Tensor, row: Tensor | None, col: Tensor | None, kernel_size: int, mask: bool) -> Tensor:
    plan, loops = _plan(projected, kernel_size, mask), _loops()
    tensors, sizes = _arguments(projected, row, col, kernel_size)
    output = torch.empty((*projected.shape[:3], *projected.shape[4:]))
    num_vectors = sizes[5] + kernel_size + kernel_size**2 + plan.num_blocks * kernel_size

    def work(first: int, last: int) -> None:
        scratch, offsets = _scratch(2, num_vectors, plan), np.empty(kernel_size**2, np.int64)
        loops.forward(*tensors, _flat(output), scratch, offsets, sizes, mask, plan.by_image, first, last)

    _in_threads(work, plan.num_tasks)
    return output.to(projected.dtype)


def _backward(
    gradient: Tensor, projected: Tensor, row: Tensor | None, col: Tensor | None, kernel_size: int, mask: bool
) -> list[Tensor]:
    plan, loops = _plan(projected, kernel_size, mask), _loops()
    tensors, sizes = _arguments(projected, row, col, kernel_size)
    num_heads, head_dim = sizes[4:6]
    into_projected = torch.empty(projected.shape)
    into_rows, into_cols = torch.empty(2, plan.num_tasks // num_heads, num_heads, kernel_size, head_dim // 2)
    num_vectors = 3 * head_dim + kernel_size * (3 + 2 * kernel_size + 2 * (head_dim // 2) + plan.num_blocks)
    incoming = _flat(gradient)

    def work(first: int, last: int) -> None:
        scratch, offsets = _scratch(4, num_vectors, plan), np.empty(kernel_size**2, np.int64)
        results = (_flat(into_projected), _flat(into_rows), _flat(into_cols))
        loops.backward(incoming, *tensors, *results, scratch, offsets, sizes, mask, plan.by_image, first, last)

    _in_threads(work, plan.num_tasks)

    def share(embedding: Tensor | None, of_tasks: Tensor) -> Tensor:
        if embedding is None:
            return projected.new_empty(0)
        total = of_tasks.sum(dim=0) if len(embedding) > 1 else of_tasks.sum(dim=(0, 1))[None]
        return total.to(embedding.dtype)

    return [into_projected.to(projected.dtype), share(row, into_rows), share(col, into_cols)]


def refusal(projected: Tensor, embeddings: Embeddings, window: Window) -> str | None:
    """Why the compiled loops cannot run on these arguments, or None."""
    reason = cpu_operator.refusal(projected, embeddings, window)
    if reason is not None:
        return reason
    if projected.dtype not in SUPPORTED_TYPES:
        return f"the projection is {projected.dtype}; float32, bfloat16 or float16 is needed"
    return _loading_trouble()


NUMBA = cpu_backend("numba", _forward, _backward, refusal)
