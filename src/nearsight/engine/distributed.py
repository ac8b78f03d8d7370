"""Several processes under torchrun: joining, agreeing, and dying together. One process is a world of size one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nearsight.engine.signals import die_with_parent


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Each wish is granted to all when any process has it. On the host: the device is not waited for."""
        if self.size == 1:
            return wishes
        votes = torch.tensor([float(wish) for wish in wishes])
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(bool(vote) for vote in votes.tolist())

    def average(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size

    def largest(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)

    def sum(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(values)

    def tell(self, value: int) -> int:
        """The leading process's ``value``, on every process."""
        if self.size == 1:
            return value
        message = torch.tensor([value])
        dist.broadcast(message, src=0)
        return int(message.item())

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def launched_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined_world(device_type: str, timeout_seconds: float = 600.0) -> Iterator[World]:
    """Join the processes that torchrun started, or stand alone."""
    if not launched_by_torchrun():
        yield World()
        return
    die_with_parent()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if size == 1:
        yield World()
        return
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
