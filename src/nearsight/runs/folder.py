"""A run is a folder with one owner: its settings, environment, log and checkpoints, under the names of ``layout``.

Reading a run takes no lock. The lock is POSIX ``lockf``: it belongs to the process, so data-loader workers do not
inherit it and a killed run frees it at once (``flock`` would stay with the orphans).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, overload

from torch import Tensor

from nearsight.images.fingerprints import same_data
from nearsight.recipes.files import thaw
from nearsight.recipes.recipe import R, Recipe
from nearsight.runs.atomic_files import disk_errors, replace, to_json
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError, FolderInUseError
from nearsight.runs.layout import BEST, CHECKPOINTS, CLASSES, CONFIG, DATA, LOCK, METRICS, MODEL
from nearsight.runs.metrics_log import read_metrics
from nearsight.runs.plain_paths import open_own, plain
from nearsight.text import typed
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import RECORD_BYTES


class Selected(NamedTuple):
    """The weights that validation selected, the averaged ones where those were better, and their step."""

    step: int
    weights: dict[str, Tensor]


class RunFolder:
    """Paths and small files of a run; ``owned()`` is what a training process does first."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).is_file()

    @overload
    def recipe(self) -> Recipe: ...
    @overload
    def recipe(self, kind: type[R]) -> R: ...
    def recipe(self, kind: type[Recipe] = Recipe) -> Recipe:
        """The settings of the run, which must be of this kind."""
        if not self.has_config:
            raise ValueError(f"{self.path} is not a run: it has no {CONFIG}")
        recipe = thaw(plain(self.path / CONFIG))
        if not isinstance(recipe, kind):
            raise ValueError(f"{self.path} is a run of {recipe.task}, not of {kind.task}")
        return recipe

    def checkpoints(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path / CHECKPOINTS, keep)

    def metrics(self) -> list[dict[str, Any]]:
        """The records logged so far."""
        if not self.metrics_path.is_file():
            raise ValueError(f"{self.path} has no {METRICS}: it is not a run, or it has not started")
        return read_metrics(plain(self.metrics_path))

    def selected(self) -> Selected:
        """What validation selected, verified; the newest weights of a run that has selected none yet.

        ``DiskError`` where it is damaged or gone. Other weights never take its place.
        """
        store = self.checkpoints()
        try:
            checkpoint = store.load_named(BEST)
            best = checkpoint.state.get(BEST)
            if best is not None and best["step"] != checkpoint.step:
                if store.pointed(BEST) is not None:
                    raise DiskError(f"best.json names step {checkpoint.step}, and step {best['step']} was selected")
                checkpoint = store.load(best["step"])  # the pointer is gone, not what it pointed to
            group = MODEL if best is None else best["weights"]
            return Selected(checkpoint.step, checkpoint.tensors[group])
        except KeyError as error:
            raise DiskError(f"the state of {self.path} does not say which weights were selected") from error
        except DiskError as error:
            raise DiskError(f"the selected weights of {self.path} cannot be used: {error}") from error

    def selected_weights(self) -> dict[str, Tensor]:
        """As ``selected``, the weights alone; a ``ValueError`` where they cannot be used."""
        try:
            return self.selected().weights
        except DiskError as error:
            raise ValueError(f"{error}; put that checkpoint back from a copy, or train anew") from error

    def was_trained_on(self, fingerprints: Mapping[str, Any]) -> bool:
        """Whether these, by split, are the fingerprints that were recorded."""
        known = self.read_json(DATA) or {}
        return all(same_data(known.get(name), value) for name, value in fingerprints.items())

    def write_json(self, name: str, value: Any) -> None:
        with disk_errors(f"writing {name}"):
            replace(self.path / name, to_json(value))

    def read_json(self, name: str) -> Any:
        """What is in a JSON file; None where it is not there."""
        path = plain(self.path / name)
        try:
            return json.loads(read_bytes(path, RECORD_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); remove it, and {typed('resume', self.path)} writes it anew"
            ) from error

    def write_text(self, name: str, text: str) -> None:
        with disk_errors(f"writing {name}"):
            replace(self.path / name, text.encode("utf-8", "surrogateescape"))  # names of files may not be UTF-8

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the run's lock; ``FolderInUseError`` names the process that has it."""
        if self.path.is_file():
            raise ValueError(f"{self.path} is a file; a run is a folder: choose another --run")
        with disk_errors(f"opening the run folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = open_own(self.path / LOCK)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
                raise FolderInUseError(
                    f"{self.path} is in use by {owner}; wait for it, stop it, or choose another --run"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def class_names(run: str | Path) -> list[str]:
    """The classes of a run whose task writes their names to `classes.txt` (see `engine.task.Task.files`)."""
    path = plain(Path(run) / CLASSES)
    if not path.is_file():
        raise ValueError(f"{run} has no {CLASSES}: it is not a run with classes, or it has not started")
    try:
        return read_bytes(path, RECORD_BYTES).decode("utf-8", "surrogateescape").splitlines()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def free_run_path(parent: Path, stem: str) -> Path:
    """The first of ``stem-1``, ``stem-2``, … that does not exist under ``parent``."""
    number = 1
    while (path := parent / f"{stem}-{number}").exists():
        number += 1
    return path
