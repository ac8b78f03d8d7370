"""The training loop: any task, any number of processes, killed at any instant and resumed to the same result.

The order of samples, their augmentation and the randomness of each step are pure functions of seed, epoch, index, step
and rank. The state of a run is therefore small: weights, optimiser, average, step, and what has not been logged yet.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Sequence
from typing import Any

import torch

from nearsight.engine.callbacks import CallbackList
from nearsight.engine.data import cut_batch, explained_loading, smaller_micro_batch
from nearsight.engine.device import compiles, pick_precision
from nearsight.engine.distributed import World
from nearsight.engine.optimizer import body_share, ema_weight, learning_rate
from nearsight.engine.saving import CheckpointSaver
from nearsight.engine.sharding import is_sharded
from nearsight.engine.state import Clock, Progress, TrainState
from nearsight.engine.step import StepResult, StepSettings, TrainStep
from nearsight.engine.task import Inputs, ProcessContext, Task, evaluated
from nearsight.randomness import STEP_STREAM, hash32
from nearsight.recipes.recipe import Recipe
from nearsight.runs.exits import (
    DataLoadingError,
    NonFiniteError,
    OutOfMemoryError,
    PreemptedError,
    RunEnded,
    StopRequest,
)
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import AVERAGE, MODEL, skipped_step
from nearsight.text import typed


class Trainer:
    """One process's part in one run. ``run`` trains to the end or raises a ``RunEnded``."""

    def __init__(
        self, task: Task, recipe: Recipe, folder: RunFolder, *, world: World, device: torch.device, stop: StopRequest
    ) -> None:
        self.task, self.recipe, self.folder, self.world = task, recipe, folder, world
        self.device, self.stop, self.callbacks = device, stop, CallbackList()
        self.total_steps = max(1, round(recipe.epochs * task.steps_per_epoch))
        self.frozen_steps = round(min(recipe.frozen_epochs, recipe.epochs) * task.steps_per_epoch)
        self.eval_interval = max(1, round(recipe.eval_every * task.steps_per_epoch))
        self.micro_batch, self.accumulation = cut_batch(recipe, world, task.batch_multiple)
        self.progress = Progress()
        self.state = TrainState(task, recipe, world, device)
        self.saver = CheckpointSaver(folder, recipe.keep, self.state, world, self.note)
        self.train_step = self._new_step()
        self.clock = Clock()

    @property
    def context(self) -> ProcessContext:
        precision = pick_precision(self.recipe.precision, self.device)
        return ProcessContext(self.device, self.world.rank, self.world.size, self.micro_batch, precision)

    @property
    def is_over(self) -> bool:
        """Whether all steps are taken, or patience has ended this plan of them."""
        return self.progress.step >= self.total_steps or self.progress.ended == self.total_steps

    def close(self) -> None:
        """Close the run's files."""
        self.saver.log.release()

    def restore(self, *, override: bool = False) -> None:
        """Load the folder's newest good checkpoint, where there is one. Before ``run``.

        With ``override`` it goes on though the weights that were selected are lost.
        """
        self.progress = self.saver.resume(self.train_step, total_steps=self.total_steps, override=override)
        step, steps = self.progress.step, self.task.steps_per_epoch
        if step > self.total_steps:
            raise ValueError(
                f"the run has taken {step} steps, and --epochs {self.recipe.epochs:g} makes {self.total_steps}; use at "
                f"least --epochs {math.ceil(100 * step / steps) / 100:g}"
            )

    def run(self) -> None:
        """Train from where ``restore`` found the run to its last step."""
        if self.progress.step:
            self.note(f"resumed after step {self.progress.step} of {self.total_steps}")
        self.clock = Clock(self.progress.seconds)
        self.state.train()
        while not self.is_over:
            try:
                self._train_from(self.progress.step)
            except torch.OutOfMemoryError as error:
                self._shrink(error)
        if self.saver.unsaved is not None:
            self._save()  # the disk may have room by now
        self.saver.require_saved()

    def _train_from(self, step: int) -> None:
        with contextlib.closing(self._feed(step)) as feed:
            for inputs in feed:
                self._freeze_as_due()
                with self._unless_stopped():
                    self._advance(inputs)
                evaluated = self._evaluate_when_due()
                stop, save = self.world.any_process(bool(self.stop), self._save_due())
                if evaluated or save or stop:
                    self._save()
                if stop:
                    self.saver.require_saved()
                    raise self._preempted(f"after step {self.progress.step}")
                if self.is_over:
                    return

    @contextlib.contextmanager
    def _unless_stopped(self) -> Generator[None, None, None]:
        """A signal also ends the compiler processes that a first step starts; the step then fails."""
        try:
            yield
        except (RunEnded, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if not self.stop:
                raise
            when = f"within step {self.progress.step + 1} ({type(error).__name__}), which is not saved"
            raise self._preempted(when) from error

    def _preempted(self, when: str) -> PreemptedError:
        return PreemptedError(f"stopped by a signal {when}; go on with: {typed('resume', self.folder.path)}")

    def _feed(self, step: int) -> Generator[Sequence[Inputs], None, None]:
        """The task's batches, with the time spent waiting for them."""
        feed = self.task.feed(step, self.context)
        while True:
            try:
                with self.clock.waiting(), explained_loading():
                    inputs = next(feed)
            except ValueError as error:
                raise DataLoadingError(str(error)) from error
            yield inputs

    def _advance(self, inputs: Sequence[Inputs]) -> None:
        step = self.progress.step
        rate = learning_rate(step, self.total_steps, self.recipe)
        seed = hash32(self.recipe.seed, STEP_STREAM, step, self.world.rank)
        warmup = self.recipe.warmup_epochs / self.recipe.epochs * self.total_steps
        body = body_share(step, self.frozen_steps, warmup)
        self.train_step(step, inputs, rate, ema_weight(step, self.recipe.ema), seed, body)
        self.progress.step += 1
        window_ends = self.progress.step % self.recipe.log_every == 0 or self.progress.step == self.total_steps
        # On a CPU reading costs nothing, so problems are seen immediately; a GPU is read when a log line is due.
        if self.device.type == "cpu" or window_ends:
            self._read_results()
        if window_ends:
            self._log_training(rate)

    def _freeze_as_due(self) -> None:
        """The body is frozen in the first steps, or in all; which follows from the step alone."""
        if self.state.frozen != (self.progress.step < self.frozen_steps):
            self._read_results()
            self.state.freeze(not self.state.frozen)
            self._renew_step()

    def _read_results(self) -> None:
        results = self.train_step.read()
        first = self.progress.step - len(results)
        for offset, result in enumerate(results):
            self.progress.pending.append([result.loss, result.grad_norm])
            self._check(first + offset, result)

    def _check(self, step: int, result: StepResult) -> None:
        """Count and report a skipped step; end the run after too many in a row."""
        progress = self.progress
        if not result.skipped:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        if result.overflow:  # fp16 is still lowering its loss scale
            return
        progress.skipped_in_a_row += 1
        samples = self.task.sample_names(step)
        self.note(f"step {step} skipped: loss {result.loss}, gradient norm {result.grad_norm}")
        if self.world.is_main:
            record = {"step": step, "loss": str(result.loss), "grad_norm": str(result.grad_norm), "samples": samples}
            self.folder.write_json(skipped_step(step), record)
        if progress.skipped_in_a_row >= self.recipe.nonfinite_limit:
            self._diagnose()
            raise NonFiniteError(
                f"{progress.skipped_in_a_row} steps in a row were not finite, the last at step {step} (samples in "
                f"{skipped_step(step)}). The weights were not touched by them. Try a lower --lr, --clip-grad 1 "
                "or --precision fp32"
            )

    def _diagnose(self) -> None:
        """Report which gradients are not finite, if there is memory to compute them."""
        with contextlib.suppress(torch.OutOfMemoryError):
            words = self.train_step.diagnosis()
            if words:
                self.note(f"step {self.progress.step - 1}, run once more: {words}")

    def _log_training(self, rate: float) -> None:
        losses, norms = zip(*self.progress.pending, strict=True)
        count = len(losses)
        self.progress.pending = []
        seconds, waiting = self.clock.lap()
        step = self.progress.step
        timed = min(count, self.train_step.steps_run)  # the others came with a checkpoint: they took no time here
        record = {
            "kind": "train",
            "step": step,
            "epoch": round(step / self.task.steps_per_epoch, 4),
            "loss": sum(losses) / count,
            "grad_norm": sum(norms) / count,
            "lr": rate,
            "skipped": self.progress.skipped,
            "images_per_second": round(timed * self.recipe.batch / seconds, 1),
            "data_wait": round(waiting, 4),
        }
        if self.device.type == "cuda":
            record["memory"] = torch.cuda.max_memory_allocated(self.device)
        self._record(record)

    def _evaluate_when_due(self) -> bool:
        step = self.progress.step
        if step % self.eval_interval and step != self.total_steps:
            return False
        self._read_results()
        with self.clock.paused(), explained_loading():
            values, alone = self._validate(), self.context.alone()
            observed = {} if is_sharded(self.state.model) else dict(self.task.observe(self.state.model, alone))
            self.state.train()
        self._record(
            {"kind": "eval", "step": step, "epoch": round(step / self.task.steps_per_epoch, 4), **values, **observed}
        )
        self._select(values)
        self._lose_patience(values)
        return True

    def _validate(self) -> dict[str, float]:
        """Values of the weights, and of the averaged ones under names that start with ``ema_``."""
        models = {"": self.state.model}
        if self.state.averaged is not None:
            models["ema_"] = self.state.averaged.model
        return {
            f"{prefix}val_{name}": value
            for prefix, model in models.items()
            for name, value in evaluated(self.task, model, "val", self.context).items()
        }

    def _select(self, values: dict[str, float]) -> None:
        """Of equal values the later wins: small validation sets often tie, and weights improve while the rate falls."""
        selection = self.task.selection
        if f"val_{selection}" not in values:
            told = ", ".join(name.removeprefix("val_") for name in values if name.startswith("val_")) or "nothing"
            raise ValueError(f"the task selects weights by {selection!r}, and its evaluation has {told}")
        for weights, prefix in ((MODEL, ""), (AVERAGE, "ema_")):
            value = values.get(f"{prefix}val_{selection}")
            if value is None:
                continue
            if not math.isfinite(value):
                self.note(f"warning: {prefix}val_{selection} is {value}: weights are not selected by it")
                continue
            last = self.recipe.select == "last" and weights == (AVERAGE if self.state.averaged else MODEL)
            best = self.progress.best
            if last or best is None or self._goodness(value) >= self._goodness(best["value"]):
                self.progress.best = {"step": self.progress.step, "value": value, "weights": weights}

    def _goodness(self, value: float) -> float:
        """The value that selects, so turned that larger is better."""
        return -value if self.task.selection == "loss" else value

    def _lose_patience(self, values: dict[str, float]) -> None:
        """End the run where validation has not become better for as long as the recipe says."""
        progress, selection = self.progress, self.task.selection
        found = [values.get(f"{prefix}val_{selection}", math.nan) for prefix in ("", "ema_")]
        value = max((one for one in found if math.isfinite(one)), key=self._goodness, default=None)
        improved = progress.improved
        if value is not None and (improved is None or self._goodness(value) > self._goodness(improved["value"])):
            progress.improved = improved = {"step": progress.step, "value": value}
        waited = (progress.step - (improved["step"] if improved else 0)) / self.task.steps_per_epoch
        if self.recipe.patience and waited >= self.recipe.patience and progress.step < self.total_steps:
            progress.ended = self.total_steps
            self.note(f"no better validation for {waited:g} epochs: the run ends after step {progress.step}")

    def _save_due(self) -> bool:
        every = self.recipe.save_every
        if every and self.progress.step % every == 0:
            return True
        return self.clock.seconds - self.progress.seconds > 60 * self.recipe.save_minutes

    def _save(self) -> None:
        self._read_results()
        self.progress.seconds = self.clock.seconds
        with self.clock.paused():
            self.saver.save(self.progress, self.train_step)

    def _shrink(self, error: BaseException) -> None:
        """Out of memory: a smaller micro-batch, or an explanation. The failed step has changed nothing."""
        self._read_results()
        self.state.optimizer.zero_grad(set_to_none=True)
        detail = str(error).splitlines()[0] if str(error) else "no details"
        smaller = smaller_micro_batch(self.micro_batch, self.task.batch_multiple)
        early = self.train_step.steps_run < 4 and self.world.size == 1
        advice = "a smaller model or image, --precision bf16"
        if smaller is None:
            raise OutOfMemoryError(f"out of memory even at a micro-batch of {self.micro_batch}: {detail}. Try {advice}")
        if not (self.recipe.batch_auto and early):
            raise OutOfMemoryError(
                f"out of memory at a micro-batch of {self.micro_batch}: {detail}. Try --micro-batch {smaller} (the "
                f"batch stays {self.recipe.batch}), --batch auto, or {advice}"
            ) from error
        self.note(f"out of memory at a micro-batch of {self.micro_batch}: going on with {smaller}, same global batch")
        self.accumulation *= self.micro_batch // smaller
        self.micro_batch = smaller
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._renew_step()

    def _renew_step(self) -> None:
        before = self.train_step
        self.train_step = self._new_step()
        self.train_step.scale.copy_(before.scale)
        self.train_step.growth.copy_(before.growth)

    def _new_step(self) -> TrainStep:
        recipe, cuda = self.recipe, self.device.type == "cuda"
        capturable = cuda and self.world.size == 1 and self.task.stays_on_device
        settings = StepSettings(
            device=self.device,
            precision=pick_precision(recipe.precision, self.device),
            clip_grad=recipe.clip_grad,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            window=recipe.log_every,
            compile=compiles(recipe, self.device),
            capture=recipe.graphs == "on" or (recipe.graphs == "auto" and capturable),
        )
        return TrainStep(self.task, self.state, settings, self.world)

    def _record(self, record: dict[str, Any]) -> None:
        if self.world.is_main:
            self.saver.log.append(record)
            self.callbacks.record(record)

    def note(self, text: str) -> None:
        if self.world.is_main:
            self.callbacks.note(text)
