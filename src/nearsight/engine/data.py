"""The data of a task: splits, order, streams, unreadable images, and how a batch is divided among processes.

A task adds how its batches are made.
"""

from __future__ import annotations

import itertools
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple

from torch import Tensor, nn

from nearsight.analysis import attention_record, is_inspectable
from nearsight.engine.distributed import World
from nearsight.engine.task import Inputs, ProcessContext
from nearsight.images.epochs import BatchStream, EpochOrder, MakeBatch, epoch_order
from nearsight.images.imageset import BadImageLog, Images, Splits, TooManyBadImages
from nearsight.recipes.recipe import R, Recipe
from nearsight.reports.page import Page
from nearsight.runs.exits import DataLoadingError
from nearsight.runs.layout import WHOLE_TRAIN

_LARGEST_RESIDENT = 2 * 2**30  # bytes of images that are kept on the device by default
_OBSERVED = 32  # validation images that attention is measured on at each evaluation


class EvalBatch(NamedTuple):
    """Images as they are evaluated."""

    images: Tensor
    """Normalised, on the device."""
    indices: Tensor
    """int64 [B], on the device: whose targets these are, by places in the split. Where an image cannot be read, the
    task either leaves it out, or shows another; then this says whose target counts: that of the image that was asked
    for (another one of its class) or that of the one that was shown, which is then counted twice."""


class TaskData(ABC, Generic[Images]):
    """The splits of a recipe, and batches of them: resident on the device when few, streamed by workers when many.

    Which of the two depends on the data alone, never on the machine, because the two resample slightly differently.
    """

    def __init__(self, recipe: Recipe, splits: Splits[Images], *, resident_bytes: int) -> None:
        self.recipe, self.splits = recipe, splits
        small = resident_bytes <= _LARGEST_RESIDENT
        self.resident = recipe.resident == "on" or (recipe.resident == "auto" and small)
        self.bad_images: dict[str, BadImageLog] = {}

    @property
    def steps_per_epoch(self) -> int:
        return self.splits.epoch_size // self.recipe.batch

    def split(self, name: str) -> Images:
        return self.splits.split(name)

    def order(self, epoch: int) -> EpochOrder:
        count, size = len(self.splits.train), self.splits.epoch_size
        return epoch_order(count, self.recipe.seed, epoch, size=size, repeats=self.recipe.repeats)

    def bad(self, split: str) -> BadImageLog:
        """The unreadable images met so far in a split."""
        if split not in self.bad_images:
            self.bad_images[split] = BadImageLog(len(self.split(split)), cap=self.recipe.bad_images)
        return self.bad_images[split]

    def training_batches(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        """Endless: the micro-batches of each step from ``start_step`` on."""
        first_epoch, first_step = divmod(start_step, self.steps_per_epoch)
        for epoch in itertools.count(first_epoch):
            order = self.order(epoch)
            start = first_step if epoch == first_epoch else 0
            parts = order.parts(self.recipe.batch, context.rank, context.world_size, start_step=start)
            for inputs in self.epoch(order, parts, context):
                cut = {name: value.split(context.micro_batch) for name, value in inputs.items()}
                yield [dict(zip(cut, parts, strict=True)) for parts in zip(*cut.values(), strict=True)]

    def eval_parts(self, split: str, batch: int, context: ProcessContext) -> tuple[EpochOrder, list[slice]]:
        """A split in its own order, each image once, and this process's share of it in batches."""
        order = epoch_order(len(self.split(split)), 0, 0, shuffle=False)
        world = context.world_size
        return order, order.parts(batch * world, context.rank, world, drop_last=False)

    @abstractmethod
    def epoch(self, order: EpochOrder, parts: list[slice], context: ProcessContext) -> Iterator[Inputs]:
        """The inputs of each part of the order: tensors of one row per sample, which are cut into micro-batches.

        Taken from the device where `resident`, else read by `stream`.
        """

    @abstractmethod
    def eval_batches(self, split: str, context: ProcessContext) -> Iterator[EvalBatch]:
        """This process's share of a split, each image once."""

    def stream(
        self, make: MakeBatch, split: str, order: EpochOrder, parts: list[slice], context: ProcessContext
    ) -> BatchStream:
        """Batches that workers make of parts of an order. In place of an image that cannot be read, `make` takes one
        that `images.imageset.read_or_replace` chooses."""
        return BatchStream(
            make,
            order,
            parts,
            workers=0 if self.resident else self.recipe.workers,
            bad=self.bad(split),
            pin_memory=context.device.type == "cuda",
        )


class DataTask:
    """Base class of tasks on sets of images: the methods of the Task protocol that only concern the data.

    A subclass has `recipe`, `data`, `build_model`, `prepare`, `loss` and `evaluate`. The last methods here are defaults
    that a task may override.
    """

    recipe: Recipe
    data: TaskData[Any]
    batch_multiple = 1

    @property
    def steps_per_epoch(self) -> int:
        return self.data.steps_per_epoch

    @property
    def selection(self) -> str:
        return self.recipe.selection

    @property
    def stays_on_device(self) -> bool:
        return self.data.resident

    def describe(self) -> list[str]:
        """For the user: where the images come from and how they are read."""
        recipe, splits = self.data.recipe, self.data.splits
        share = f"; {len(splits.train)} training images kept, an epoch still shows {splits.epoch_size}"
        kept = "" if recipe.fraction == 1 else share
        where = "resident on the device" if self.data.resident else f"streamed by {recipe.workers} workers"
        notes = (note if note.startswith("warning: ") else f"data: {note}" for note in splits.notes)
        return [f"data: {splits.origin}{kept}; {where}", *notes]

    def not_read(self) -> Mapping[str, int]:
        return self.data.splits.not_read

    def num_images(self) -> Mapping[str, int]:
        return {name: len(images) for name, images in self.data.splits.named.items()}

    def fingerprint(self) -> dict[str, Any]:
        splits = self.data.splits
        return splits.fingerprints if splits.whole is None else {**splits.fingerprints, WHOLE_TRAIN: splits.whole}

    def sample_names(self, step: int) -> list[str]:
        epoch, place = divmod(step, self.steps_per_epoch)
        order, names = self.data.order(epoch), self.data.splits.train.names
        return [names[int(index)] for index in order.indices[order.part(place, self.data.recipe.batch)]]

    def problems(self) -> list[str]:
        """Every unreadable image met so far, and why."""
        return [
            f"{name}: {reason}" if split == "train" else f"{split}: {name}: {reason}"
            for split, log in self.data.bad_images.items()
            for name, reason in log.reasons.items()
        ]

    def has_split(self, split: str) -> bool:
        return split in self.data.splits.named

    def files(self) -> dict[str, str]:
        return {}

    def training_module(self, model: nn.Module) -> nn.Module:
        return model

    def feed(self, start_step: int, context: ProcessContext) -> Iterator[list[Inputs]]:
        return self.data.training_batches(start_step, context)

    def observe(self, model: nn.Module, context: ProcessContext) -> Iterable[tuple[str, Any]]:
        """Of attention layers that analysis knows, how far they look and their gates, on some validation images."""
        if not is_inspectable(model):
            return ()
        images = next(iter(self.data.eval_batches("val", context))).images[:_OBSERVED]
        return attention_record(model, images).items()

    def remarks(self, model: nn.Module, context: ProcessContext) -> list[str]:
        return []

    def report_pages(self, model: nn.Module, records: list[dict[str, Any]], context: ProcessContext) -> list[Page]:
        return []


@contextmanager
def explained_loading() -> Iterator[None]:
    """Around code that reads from a dataloader: unreadable data and dead workers become a DataLoadingError.

    A dead worker shows as a RuntimeError of the dataloader, or as a broken connection if it died while sending a
    batch. torch also installs a signal handler that raises at any point of the program, even inside a lock that is
    then never released; the dataloader notices dead workers within seconds, so the handler is removed.
    """
    try:
        yield
    except TooManyBadImages as error:
        raise DataLoadingError(str(error)) from error
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise DataLoadingError(
            f"a data-loading process died ({' '.join(str(error).split()) or type(error).__name__}); it may have run "
            "out of memory or of space in /dev/shm: try fewer --workers, then resume"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


_UPDATES = 4  # in an epoch


def suggested_batch(count: int) -> int:
    """A power of two that leaves an epoch of ``count`` samples ``_UPDATES`` or more, or as many as there can be."""
    return max(2, 2 ** (count.bit_length() - 3))


def check_batch(recipe: R, splits: Splits[Any], *, fit: bool = False) -> R:
    """``recipe``, once it is known that an epoch fills its batch.

    With ``fit``, or ``batch_auto``, a set that does not fill four batches gets smaller ones. A share of a set has the
    batch of the whole set.
    """
    kept, count = len(splits.train), splits.epoch_size
    if kept < 2:
        raise ValueError(f"there {'is one training image' if kept else 'are no training images'}; at least two needed")
    suggested = suggested_batch(count)
    if (fit or recipe.batch_auto) and count < _UPDATES * recipe.batch and suggested < recipe.batch:
        return recipe.with_changes(batch=suggested)
    if count < recipe.batch:
        raise ValueError(
            f"batch {recipe.batch} is larger than the {count} training images; use --batch {suggested}, for example, "
            "or --batch auto"
        )
    return recipe


def cut_batch(recipe: Recipe, world: World, multiple: int) -> tuple[int, int]:
    """(micro-batch, micro-batches per update) of one process, or an error that lists what would fit."""
    if recipe.batch % (world.size * multiple):
        fits = [n for n in range(1, recipe.batch + 1) if recipe.batch % (n * multiple) == 0]
        shown = ", ".join(str(n) for n in fits[:12])
        whole = world.size * multiple
        groups = f" in groups of {multiple}, which mixup and cutmix need" if multiple > 1 else ""
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared by {world.size} processes{groups}; use --batch "
            f"{-(-recipe.batch // whole) * whole}, or a number of processes that fits: {shown}"
        )
    share = recipe.batch // world.size
    micro = recipe.micro_batch or share
    if micro > share or share % micro or micro % multiple:
        fits = [n for n in range(multiple, share + 1, multiple) if share % n == 0]
        raise ValueError(
            f"micro_batch {micro} does not fit the {share} images of each process; "
            f"sizes that fit: {', '.join(str(n) for n in fits)}"
        )
    return micro, share // micro


def smaller_micro_batch(micro: int, multiple: int) -> int | None:
    """The largest micro-batch below ``micro`` that divides it in whole groups; None when there is none."""
    parts = next((n for n in range(2, micro + 1) if micro % n == 0 and (micro // n) % multiple == 0), None)
    return micro // parts if parts else None
