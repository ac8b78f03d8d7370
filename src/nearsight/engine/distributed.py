"""Several processes under torchrun: collectives, joining and leaving. One process is a world of size one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nearsight.runs.exits import die_with_parent

T = TypeVar("T")
_HEARTBEAT = 60.0  # seconds between signs of life of the main process


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def any_process(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is set on any process. On the host, without synchronising with the device."""
        values = torch.tensor([float(flag) for flag in flags])
        self.maximum(values)
        return tuple(bool(value) for value in values.tolist())

    def average(self, values: Tensor) -> None:
        """In place, over all processes."""
        self.sum(values)
        values /= self.size

    def maximum(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)

    def sum(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(values)

    def broadcast(self, value: int) -> int:
        """The main process's ``value``, on every process."""
        if self.size == 1:
            return value
        message = torch.tensor([value])
        dist.broadcast(message, src=0)
        return int(message.item())

    def gather(self, value: Any) -> list[Any]:
        """Every process's ``value`` in order of rank, on every process. It is pickled, so tensors belong on the CPU."""
        if self.size == 1:
            return [value]
        shares: list[Any] = [None] * self.size
        dist.all_gather_object(shares, value)
        return shares

    def of_main(self, work: Callable[[], T]) -> T | None:
        """What ``work`` gives in the main process; None in others, which wait for it as long as it takes.

        Collectives give up after some minutes, and reading all of a large data set may take longer.
        """
        if self.size == 1:
            return work()
        if not self.is_main:
            while self.broadcast(0):
                pass
            return None
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            while not wait([future], _HEARTBEAT).done:
                self.broadcast(1)
            self.broadcast(0)
            return future.result()

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_processes(device_type: str, timeout_seconds: float = 600.0) -> Iterator[World]:
    """Join the processes that torchrun started; a world of one process without it."""
    launched = dist.is_torchelastic_launched()
    if launched:
        die_with_parent()
    size = int(os.environ["WORLD_SIZE"]) if launched else 1
    if size == 1:
        yield World()
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    store, _, _ = next(rendezvous("env://"))
    # After an in-place restart the agent's store still holds the addresses of the previous attempt.
    store = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    if device_type == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_seconds)
    )
    try:
        yield World(rank, size, local_rank)
    finally:
        dist.destroy_process_group()
