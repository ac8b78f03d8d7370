"""Calling the loops that numba compiles (`numba_entries`): whether they can be had, and how a job is handed over.

The first call on a machine compiles them; later processes read them from numba's cache on the disk.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .later import constant_when_compiled
from .torch_threads import num_threads, on_threads

SUPPORTED_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def _loops() -> Any:
    """The compiled loops; an ImportError where numba is missing or does not go with the other libraries."""
    return import_module(f"{__package__}.numba_entries")


@constant_when_compiled  # imports cannot be traced
def loading_trouble() -> str | None:
    try:
        _loops()
    except ImportError as error:
        return f"numba cannot be loaded ({error})"
    return None


FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
WHOLE: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}
"""What loops read and write, whatever torch's default type and device are."""


class Job(NamedTuple):
    """What a loop works on, beside its tensors; `local/numba_maps.py` says where it finds them."""

    num_tasks: int
    scratch_size: int
    """Numbers that each thread may write to."""
    sizes: Sequence[int]
    options: tuple[bool, bool, bool] = (False, False, False)
    """Masked, lanes over images, with a positional term."""
    num_offsets: int = 0


def run(loop: str, job: Job, tensors: list[Tensor]) -> None:
    """One of the compiled loops over all tasks."""
    threads = num_threads(job.num_tasks)
    assert all(tensor.dtype == torch.float32 and tensor.is_cpu for tensor in tensors)  # they are reached by address
    scratch = torch.zeros(threads, job.scratch_size, **FLOATS)
    offsets = torch.zeros(threads, job.num_offsets, **WHOLE)
    memory = (scratch.data_ptr(), job.scratch_size, offsets.data_ptr())
    addresses = (tensor.data_ptr() for tensor in tensors)
    numbers = torch.tensor([0, threads, job.num_tasks, *job.options, *memory, *job.sizes, *addresses], **WHOLE)
    address = _loops().compiled(loop).address
    on_threads(address, numbers.data_ptr(), threads)
    for _ in range(threads - int(numbers[0])):  # OpenMP may give fewer threads than were asked for
        on_threads(address, numbers.data_ptr(), 1)


def as_float32(tensor: Tensor | None) -> Tensor:
    """The tensor as float32, dense in memory's order; one of nothing for None."""
    return torch.empty(0, **FLOATS) if tensor is None else tensor.detach().to(torch.float32).contiguous()
