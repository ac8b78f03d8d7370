"""TensorBoard and Weights & Biases. Each has its own thread: a slow or broken tracker only causes a warning."""

from __future__ import annotations

import importlib.util
import queue
import secrets
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nearsight.recipes.recipe import Recipe
from nearsight.runs.layout import TENSORBOARD, WANDB_ID
from nearsight.runs.plain_paths import plain

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_SECONDS_AT_CLOSE = 10.0
_SECONDS_TO_LOG_IN = 60.0


class Tracker(Protocol):
    """Takes numbers by name and step."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """On resume, its first step replaces what the killed run wrote from that step on."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(plain(folder / TENSORBOARD))
        self._writer: SummaryWriter | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = self._writer or SummaryWriter(self._folder, purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbTracker:
    """One W&B run for a run folder, however often it is resumed."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        import wandb

        # nearsight prints the progress: W&B copies no output and prints no summary. Its login prompt times out.
        settings = wandb.Settings(console="off", quiet=True, login_timeout=_SECONDS_TO_LOG_IN)
        self._run = wandb.init(
            project="nearsight",
            config=recipe.as_dict(),
            dir=str(plain(folder / "wandb").parent),
            name=folder.name,
            id=_lasting_id(folder / WANDB_ID),
            resume="allow",
            settings=settings,
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def _lasting_id(file: Path) -> str:
    """A random id, made once for a folder: by the folder's name W&B would mix runs of equal names."""
    if not plain(file).exists():
        file.write_text(secrets.token_hex(4) + "\n")
    return file.read_text().strip()


class BackgroundTracker:
    """A callback that hands records to a tracker's thread; it waits for it only at the end, ten seconds at most."""

    def __init__(self, make: Callable[[], Tracker]) -> None:
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(make,), daemon=True)
        self._thread.start()

    def record(self, record: dict[str, Any]) -> None:
        self._records.put(record)

    def note(self, text: str) -> None:
        return

    def close(self) -> None:
        self._records.put(None)
        self._thread.join(_SECONDS_AT_CLOSE)

    def _work(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            while (record := self._records.get()) is not None:
                tracker.log(flat_numbers(record), record["step"])
            tracker.close()
        except Exception as error:  # any error: a tracker must not stop the training
            warnings.warn(f"a tracker failed and is no longer used: {error}", stacklevel=1)


def flat_numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record under flat names: lists become ``gates/2/0``."""
    flat: dict[str, float] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                visit(f"{name}/{index}", item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[name] = float(value)

    for name, value in record.items():
        if name not in ("kind", "step"):
            visit(f"{record['kind']}/{name}", value)
    return flat


def check_trackers(recipe: Recipe) -> None:
    """The packages of the trackers that a recipe asks for are there."""
    for wanted, package in ((recipe.tensorboard, "tensorboard"), (recipe.wandb, "wandb")):
        if wanted and importlib.util.find_spec(package) is None:
            raise ValueError(f"--{package} needs a package: pip install {package}")


def make_trackers(recipe: Recipe, folder: Path) -> list[BackgroundTracker]:
    """The trackers a recipe asks for."""
    trackers = []
    if recipe.tensorboard:
        trackers.append(BackgroundTracker(lambda: TensorBoardTracker(folder)))
    if recipe.wandb:
        trackers.append(BackgroundTracker(lambda: WandbTracker(folder, recipe)))
    return trackers
