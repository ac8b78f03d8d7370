"""Checkpoints and log of a run, written so that nothing is lost and read so that nothing is repeated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from nearsight.engine.distributed import World
from nearsight.engine.state import Progress, TrainState
from nearsight.engine.step import TrainStep
from nearsight.runs.checkpoint import Checkpoint, require_free_space
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import BEST, METRICS
from nearsight.runs.metrics_log import MetricsLog


class CheckpointSaver:
    """One process's access to the run's folder; only the main process writes."""

    def __init__(
        self, folder: RunFolder, keep: int, state: TrainState, world: World, note: Callable[[str], None]
    ) -> None:
        self.folder, self.state, self.world, self.note = folder, state, world, note
        self.store = folder.checkpoints(keep)
        self.log = MetricsLog(folder.metrics_path)
        self.unsaved: DiskError | None = None
        self._best_saved: dict[str, Any] | None = None
        self._best_unsaved: dict[str, Any] | None = None

    def save(self, progress: Progress, step: TrainStep) -> None:
        """Write a checkpoint; a full disk is reported and training goes on with the last good one in place.

        With sharded parameters every process must call it.
        """
        tensors = self.state.tensors()
        if not self.world.is_main:
            return
        if self._best_unsaved is not None and self._best_unsaved["step"] == progress.step:
            progress.best = self._best_unsaved  # its weights are still here, and the disk may have room by now
        record = {**dataclasses.asdict(progress), "world_size": self.world.size}
        # As text: JSON has no NaN, and float() reads "nan".
        record["pending"] = [[str(value) for value in pair] for pair in progress.pending]
        record["scale"] = [step.scale.item(), step.growth.item()]
        try:
            self.store.save(progress.step, tensors, record, {METRICS: self.log.content()})
            if progress.best is not None and progress.best["step"] == progress.step:
                self.store.point(BEST, progress.step)
            self.unsaved, self._best_saved, self._best_unsaved = None, progress.best, None
        except DiskError as error:
            # A best that is not on the disk cannot be used.
            self.unsaved, self._best_unsaved, progress.best = error, progress.best, self._best_saved
            self.note(f"warning: {error}. Training goes on; the last good checkpoint is kept")

    def require_saved(self) -> None:
        """Raise the last error of the disk if the end of the run could not be saved."""
        if self.unsaved is not None:
            raise self.unsaved
        if self.world.is_main:
            self.log.flush()

    def resume(self, step: TrainStep, *, total_steps: int, override: bool = False) -> Progress:
        """Load the newest good checkpoint, log included; a fresh start where there is none.

        ``DiskError`` where the selected weights are lost: the run cannot end as it would have. With ``override`` it
        goes on nevertheless, if steps are left, and selects among the weights to come.
        """
        checkpoint = self._newest()
        if checkpoint is None:
            if self.world.is_main:
                require_free_space(self.folder.path, self.state.expected_bytes())
                self.log.restore(b"")
            return Progress()
        try:
            self.state.load_tensors(checkpoint.tensors)
        except ValueError as error:
            raise DiskError(f"the checkpoint of step {checkpoint.step} does not fit this model: {error}") from error
        known = {field.name for field in dataclasses.fields(Progress)}
        progress = Progress(**{name: value for name, value in checkpoint.state.items() if name in known})
        progress.pending = [[float(value) for value in pair] for pair in progress.pending]
        scale, growth = checkpoint.state["scale"]
        step.scale.fill_(scale)
        step.growth.fill_(growth)
        steps_left = checkpoint.step < total_steps and progress.ended != total_steps
        if self._selected_is_lost(progress, may_go_on=override and steps_left):
            progress.best = None
        self._best_saved = progress.best
        if self.world.is_main:
            self.log.restore(checkpoint.files[METRICS])
            self.store.set_aside_after(checkpoint.step)
            if progress.best is not None:
                self.store.point(BEST, progress.best["step"])
        return progress

    def _selected_is_lost(self, progress: Progress, *, may_go_on: bool) -> bool:
        """Whether the checkpoint that was selected is damaged or gone, as the main process finds."""
        lost = False
        best = progress.best
        if self.world.is_main and best is not None and best["step"] != progress.step:
            try:
                self.store.load(best["step"])
            except DiskError as error:
                if not may_go_on:
                    raise DiskError(
                        f"the weights that were selected at step {best['step']} are lost: {error}. Put that checkpoint "
                        f"back from a copy. With --override (and more --epochs where no steps are left) the run goes "
                        f"on from step {progress.step} and selects among the weights to come"
                    ) from error
                self.note(
                    f"warning: the weights selected at step {best['step']} are lost ({error}); weights are selected "
                    f"anew from step {progress.step} on"
                )
                lost = True
        return bool(self.world.broadcast(lost))

    def _newest(self) -> Checkpoint | None:
        """The main process chooses (and cleans up after killed writers), the others read what it chose."""
        chosen: Checkpoint | None = None
        if self.world.is_main:
            self.store.remove_leftovers()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                chosen = self.store.load_newest()
            for warning in caught:
                self.note(f"warning: {warning.message}")
        step = self.world.broadcast(chosen.step if chosen else -1)
        if self.world.is_main or step < 0:
            return chosen
        return self.store.load(step)
