"""Runs a training process with faults built in from outside: the package itself has no test hooks.

A spec is {"run", "output", "recipe": changes, "task": "toy" | "images", and any of the faults below}.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import ClassVar

import torch
from toy import KIND, ToyTask, toy_recipe

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.engine import trainer as engine
from nearsight.engine.distributed import World
from nearsight.engine.training import train
from nearsight.recipes.files import apply_changes
from nearsight.runs import atomic_files, checkpoint
from nearsight.runs.exits import reported
from nearsight.runs.folder import RunFolder
from nearsight.tasks import register

register(KIND)


class Printer:
    """Every note and every step on a line of its own."""

    def record(self, record) -> None:
        if record["kind"] == "train":
            print(f"step {record['step']}", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        print("closed", flush=True)


def run(spec: dict) -> None:
    os.environ.update(spec.get("environment", {}))
    toy = spec.get("task", "toy") == "toy"
    recipe = toy_recipe() if toy else toy_recipe(ClassificationRecipe)
    recipe = apply_changes(recipe, spec.get("recipe", {}), where="spec")
    with reported():
        _limit_files(spec.get("largest_file"))
        _kill_in_checkpoint(spec.get("kill_at"))
        _fill_disk(spec.get("disk_full"))
        _die_when_restored(spec.get("die_when_restored", False))
        _forbid_network(spec.get("no_network", False))
        FaultyToy.spec = spec
        train(
            recipe,
            RunFolder(spec["run"]),
            open_task=FaultyToy if toy else ClassificationTask,
            callbacks=lambda _: [Printer()],
            override=spec.get("override", False),
        )


def _die_when_restored(asked: bool) -> None:
    """Between opening the log and the first step."""
    restore = engine.Trainer.restore

    def restored(self, **options) -> None:
        restore(self, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    if asked:
        engine.Trainer.restore = restored


class FaultyToy(ToyTask):
    """The toy with trouble at chosen steps."""

    spec: ClassVar[dict] = {}

    def prepare(self, inputs, step, first):
        self.step = int(step)
        time.sleep(self.spec.get("slow", 0.0))
        mine = int(os.environ.get("RANK", "0")) == self.spec.get("die_rank", 0)
        marker = Path(self.spec["run"] + ".died")
        if self.step == self.spec.get("stop_at"):
            os.kill(os.getpid(), signal.SIGTERM)
            if self.spec.get("compiler_dies_too"):
                raise RuntimeError("pretended: the compiler was killed")
        if self.step == self.spec.get("die_once_at") and mine and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        batch = super().prepare(inputs, step, first)
        limit = self.spec.get("memory_limit")
        if limit is not None and len(batch.inputs) > limit:
            raise torch.OutOfMemoryError("pretended: tried to allocate 20 MiB")
        return batch

    def evaluate(self, model, split, context):
        yield from super().evaluate(model, split, context)
        if split == "test":  # 1 of one process, 21 of two, 321 of three
            shares = World(context.rank, context.world_size).gather({"rank": context.rank})
            yield "gathered", sum(10**place * (share["rank"] + 1) for place, share in enumerate(shares))

    def loss(self, outputs, batch):
        loss = super().loss(outputs, batch)
        if self.step in self.spec.get("nan_loss", ()) or self.step >= self.spec.get("nan_from", float("inf")):
            return loss * float("nan")
        if self.step in self.spec.get("inf_gradient", ()):
            return loss + _ExplodingGradient.apply(outputs).sum() * 0
        return loss


class _ExplodingGradient(torch.autograd.Function):
    """Finite forward, infinite backward."""

    @staticmethod
    def forward(ctx, values):
        return values

    @staticmethod
    def backward(ctx, gradient):
        return torch.full_like(gradient, float("inf"))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _forbid_network(forbid: bool) -> None:
    def refuse(*arguments):
        raise AssertionError(f"a connection was tried: {arguments}")

    if forbid:
        socket.socket.connect = refuse
        socket.getaddrinfo = refuse


def _limit_files(largest: int | None) -> None:
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def _kill_in_checkpoint(kill_at: list | None) -> None:
    """[point, n]: die at the n-th passing of a point of checkpoint writing."""
    if kill_at is None:
        return
    point, countdown = kill_at[0], [kill_at[1]]

    def passing(*here: str) -> bool:
        if point not in here:
            return False
        countdown[0] -= 1
        return countdown[0] == 0

    real_write, real_rename, real_replace = checkpoint.write_new, os.rename, os.replace

    def write_new(path, content):
        if passing(f"half of {path.name}"):
            with open(path, "wb") as file:
                file.write(content[: len(content) // 2])
            _die()
        real_write(path, content)
        if passing(f"after {path.name}"):
            _die()

    def rename(source, target):
        pruning = ".tmp-" in str(target)
        if not pruning and passing("before rename"):
            _die()
        real_rename(source, target)
        if passing("after prune rename" if pruning else "after rename"):
            _die()

    def replace(source, target):
        if passing(f"before pointer {Path(target).name}"):
            _die()
        real_replace(source, target)

    checkpoint.write_new = write_new
    checkpoint.os.rename = rename
    atomic_files.os.replace = replace


def _fill_disk(between: list | None) -> None:
    """[first, last]: the disk is full for the checkpoints of these steps."""
    if between is None:
        return
    real = checkpoint.write_new

    def write_new(path, content):
        step = int(path.parent.name.split("-")[1].split(".")[0])
        if between[0] <= step <= between[1]:
            real(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content)

    checkpoint.write_new = write_new


if __name__ == "__main__":  # one rank under torchrun
    import json
    import sys

    torch.set_num_threads(1)
    run(json.loads(sys.argv[1]))
