"""The protocol between engine and task: the engine knows neither classes nor boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nearsight.recipes.recipe import Recipe
from nearsight.reports.page import Page

Inputs = Mapping[str, Tensor]
"""What changes from one micro-batch to the next: tensors of fixed shapes, on the host or already on the device."""


class Batch(NamedTuple):
    """The inputs of a model, and the targets of its loss."""

    inputs: Any
    """Images [B, C, H, W] may be in any memory format: the engine gives them the one of ``channels_last``."""
    targets: Any


@dataclass(frozen=True)
class ProcessContext:
    """The device and precision of a process, and its slice of every global batch."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    micro_batch: int = 0
    precision: torch.dtype = torch.float32

    def alone(self) -> ProcessContext:
        """The same device and precision with nobody to share a split with."""
        return replace(self, rank=0, world_size=1)

    def autocast(self) -> torch.autocast:
        """Around a forward pass without gradients: its precision."""
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


class Task(Protocol):
    """Everything that is specific to one kind of task. Built from a recipe; cheap until its methods are called."""

    @property
    def recipe(self) -> Recipe:
        """The recipe as it is used: its batch may have been fitted to the data."""

    @property
    def steps_per_epoch(self) -> int:
        """Updates per epoch, which shows as many samples as the training set has before `fraction`.

        It depends on the data and the global batch alone.
        """

    @property
    def batch_multiple(self) -> int:
        """A micro-batch must be a multiple of this, so that cutting the batch differently changes nothing."""

    @property
    def selection(self) -> str:
        """Name of the evaluated value that decides which checkpoint is best: the larger the better, but for `loss`."""

    @property
    def stays_on_device(self) -> bool:
        """Whether the feed's inputs are made on the device, so that a whole step can be captured and replayed."""

    def describe(self) -> list[str]:
        """Lines for the user before training starts: what was found, what will be trained."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON-ready identity of the data; resuming with another one is refused."""

    def not_read(self) -> Mapping[str, int]:
        """Files of the data that are not read: how many for each reason."""

    def num_images(self) -> Mapping[str, int]:
        """How many images each split has."""

    def files(self) -> dict[str, str]:
        """Text files that record the data in the run's folder: class names, chosen images."""

    def build_model(self) -> nn.Module:
        """The model with fresh weights, from torch's global random state, on the CPU."""

    def training_module(self, model: nn.Module) -> nn.Module:
        """What is called in training: ``model`` itself, or a module around it that gives the loss what it needs."""

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        """Endless: for each step from ``start_step`` on, the inputs of this process's micro-batches.

        A pure function of recipe and step: any start, rank, worker count and micro-batch gives the same samples.
        Called before the first ``prepare``: move what that needs to ``context.device`` here.
        """

    def prepare(self, inputs: Inputs, step: Tensor, first: int) -> Batch:
        """Augmentation and target making on the device, where ``first`` is the index of its first sample in the batch.

        It may be compiled and captured: no host reads, no shapes that depend on values, randomness from ``step``,
        indices and what ``inputs`` carry alone.
        """

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean loss over the micro-batch."""

    def sample_names(self, step: int) -> list[str]:
        """The samples of the global batch of ``step``, for the report of a bad step."""

    def problems(self) -> list[str]:
        """What went wrong with the data so far without stopping the run, such as unreadable images."""

    def evaluate(self, model: nn.Module, split: str, context: ProcessContext) -> Iterable[tuple[str, float]]:
        """Named values of ``model`` on ``val`` or ``test``; one called ``loss`` is drawn beside the training loss.

        Every process calls it with its share of the split, and gets the same values: ``World.sum`` adds up what each
        has counted, ``World.gather`` brings together what cannot be added. It leaves the model in evaluation mode.
        """

    def remarks(self, model: nn.Module, context: ProcessContext) -> list[str]:
        """Sentences about the selected model, beside the figures of the finished run. Every process calls it."""

    def observe(self, model: nn.Module, context: ProcessContext) -> Iterable[tuple[str, Any]]:
        """Named lists that describe the model's state (gates, nonlocality), logged with each evaluation.

        ``context`` is that of a single process.
        """

    def has_split(self, split: str) -> bool:
        """Whether there is a ``val`` or ``test`` split."""

    def report_pages(self, model: nn.Module, records: list[dict[str, Any]], context: ProcessContext) -> list[Page]:
        """Sections of the report on the selected model, besides the engine's own curves.

        Called in the main process alone, with the context of a single process.
        """


def evaluated(task: Task, model: nn.Module, split: str, context: ProcessContext) -> dict[str, float]:
    """What ``task.evaluate`` yields, as numbers; a ``ValueError`` names a value that is none."""
    values = {}
    for name, value in task.evaluate(model, split, context):
        try:
            values[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"the evaluated value {name!r} must be a number, got {kind}") from error
    return values
