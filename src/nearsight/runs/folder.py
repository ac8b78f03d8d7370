"""A run is a folder with one owner: its settings, environment, log and checkpoints.

    config.yaml   env.json   metrics.jsonl   checkpoints/   run.lock   and, at the end, plots and report.html

Reading a run takes no lock. The lock is POSIX ``lockf``: it belongs to the process, so data-loader workers do not
inherit it and a killed run frees it at once (``flock`` would stay with the orphans).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.durable import disk_errors, replace, to_json
from nearsight.runs.exits import FolderInUseError
from nearsight.runs.metrics_log import read_metrics

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
DONE = "done.json"
REPORT = "report.html"
CLASSES = "classes.txt"


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

    def checkpoints(self, keep: int = 2) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints", keep)

    def metrics(self) -> list[dict[str, Any]]:
        """The records logged so far."""
        if not self.metrics_path.is_file():
            raise ValueError(f"{self.path} has no {METRICS}: it is not a run, or it has not started")
        return read_metrics(self.metrics_path)

    def write_json(self, name: str, value: Any) -> None:
        with disk_errors(f"writing {name}"):
            replace(self.path / name, to_json(value))

    def read_json(self, name: str) -> Any:
        """What is in a JSON file; None where it is not there."""
        try:
            return json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path / name} is damaged ({error}); remove it, and nearsight resume {self.path} writes it anew"
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
            descriptor = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o666)
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
    """The classes of a classification run; none of another folder."""
    path = Path(run) / CLASSES
    return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.is_file() else []


def free_run_path(parent: Path, stem: str) -> Path:
    """The first of ``stem-1``, ``stem-2``, … that does not exist under ``parent``."""
    number = 1
    while (path := parent / f"{stem}-{number}").exists():
        number += 1
    return path
