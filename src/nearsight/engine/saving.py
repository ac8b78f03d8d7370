"""Keeping a run: checkpoints and log, written so that nothing is lost and read so that nothing is repeated."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from nearsight.engine.distributed import World
from nearsight.engine.snapshot import expected_bytes, put_tensors, take_tensors
from nearsight.engine.state import Workbench
from nearsight.engine.step import TrainStep
from nearsight.runs.checkpoint import Checkpoint, require_free_space
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import BEST, METRICS
from nearsight.runs.metrics_log import MetricsLog


@dataclasses.dataclass
class Progress:
    """Where a run stands; the part of its state that is JSON."""

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    pending: list[list[float]] = dataclasses.field(default_factory=list)
    best: dict[str, Any] | None = None
    seconds: float = 0.0


class Keeper:
    """One process's access to the run's folder; only the leading process writes."""

    def __init__(
        self, folder: RunFolder, keep: int, bench: Workbench, world: World, note: Callable[[str], None]
    ) -> None:
        self.folder, self.bench, self.world, self.note = folder, bench, world, note
        self.store = folder.checkpoints(keep)
        self.log = MetricsLog(folder.metrics_path)
        self.unsaved: DiskError | None = None
        self._best_saved: dict[str, Any] | None = None
        self._best_unsaved: dict[str, Any] | None = None

    def save(self, progress: Progress, step: TrainStep) -> None:
        """Write a checkpoint; a full disk is reported and training goes on with the last good one in place.

        With sharded parameters every process must call it.
        """
        tensors = take_tensors(self.bench)
        if not self.world.leads:
            return
        if self._best_unsaved is not None and self._best_unsaved["step"] == progress.step:
            progress.best = self._best_unsaved  # its weights are still here, and the disk may have room by now
        state = {**dataclasses.asdict(progress), "world_size": self.world.size}
        # As text: JSON has no NaN, and float() reads "nan".
        state["pending"] = [[str(value) for value in pair] for pair in progress.pending]
        state["scale"] = [step.scale.item(), step.growth.item()]
        try:
            self.store.save(progress.step, tensors, state, {METRICS: self.log.content()})
            if progress.best is not None and progress.best["step"] == progress.step:
                self.store.point(BEST, progress.step)
            self.unsaved, self._best_saved, self._best_unsaved = None, progress.best, None
        except DiskError as error:
            # A best that is not on the disk cannot be used.
            self.unsaved, self._best_unsaved, progress.best = error, progress.best, self._best_saved
            self.note(f"warning: {error}. Training goes on; the last good checkpoint is kept")

    def require_saved(self) -> None:
        """The end of a run must be on the disk, or the disk's own message is how it ends."""
        if self.unsaved is not None:
            raise self.unsaved
        if self.world.leads:
            self.log.flush()

    def resume(self, step: TrainStep) -> Progress:
        """Put the newest good checkpoint in place, log included; a fresh start where there is none."""
        checkpoint = self._newest()
        if checkpoint is None:
            if self.world.leads:
                require_free_space(self.folder.path, expected_bytes(self.bench))
                self.log.restore(b"")
            return Progress()
        put_tensors(checkpoint, self.bench)
        state = checkpoint.state
        known = {field.name for field in dataclasses.fields(Progress)}
        progress = Progress(**{name: value for name, value in state.items() if name in known})
        progress.pending = [[float(value) for value in pair] for pair in progress.pending]
        scale, growth = state["scale"]
        step.scale.fill_(scale)
        step.growth.fill_(growth)
        self._best_saved = progress.best
        if self.world.leads:
            self.log.restore(checkpoint.files[METRICS])
            self.store.set_aside_after(checkpoint.step)
            if progress.best is not None:
                self.store.point(BEST, progress.best["step"])
        return progress

    def _newest(self) -> Checkpoint | None:
        """The lead chooses (and cleans up after killed writers), the others read what it chose."""
        chosen: Checkpoint | None = None
        if self.world.leads:
            self.store.remove_leftovers()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                chosen = self.store.load_newest()
            for warning in caught:
                self.note(f"warning: {warning.message}")
        step = self.world.tell(chosen.step if chosen else -1)
        if self.world.leads or step < 0:
            return chosen
        return self.store.load(step)
