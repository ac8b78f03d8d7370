"""Compiled functions on the threads that torch itself computes on.

After its own work torch's second thread waits for more by asking again and again, for milliseconds, and whoever has
threads beside it shares the cores with that. With the team of the same OpenMP library there is nothing to share, and
a call costs microseconds. Where the library is not GNU's, threads of Python's take its place.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch


@cache
def _team() -> Callable[..., Any] | None:
    """OpenMP's call of a function by all threads of a team. torch opens the library for every library to see."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, TypeError):  # another OpenMP; no such list of symbols on Windows
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of one process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="nearsight-kernels")


def num_threads(num_tasks: int) -> int:
    """As many as torch has, but no more than there are tasks."""
    return max(1, min(torch.get_num_threads(), num_tasks))


def on_threads(function: int, argument: int, threads: int) -> None:
    """Each of so many threads calls the C function at an address once, with the address of its argument."""
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    team = _team()
    if threads == 1:
        call(argument)
    elif team is not None:
        team(function, argument, threads, 0)
    else:
        others = [_pool(os.getpid(), threads).submit(call, argument) for _ in range(threads - 1)]
        call(argument)
        for other in others:
            other.result()
