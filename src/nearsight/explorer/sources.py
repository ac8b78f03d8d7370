"""What can be looked into, by what a person types: a run folder, a model's name, or `timm:NAME`.

And what it is shown when no picture is named: a run's own validation set, else bundled pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.analysis.pictures import SAMPLES, in_turn, model_size
from nearsight.analysis.walk import Detector, inspectable
from nearsight.classification.model import timm_model
from nearsight.classification.use import top_classes
from nearsight.datasets.sources import open_data
from nearsight.detection.anchors import DetectorOutputs
from nearsight.detection.use import surest_boxes
from nearsight.models import create_model
from nearsight.randomness import INITIALISATION_STREAM, hash32
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import BEST, CONFIG, DATA, MODEL
from nearsight.tasks import task_kind
from nearsight.text import without_home
from nearsight.weights import from_timm, load_weights, read_weights


@dataclass(frozen=True)
class Snapshot:
    """One moment of a model: step 0 is before training, None are the selected or only weights."""

    step: int | None
    label: str


class ModelSource:
    """A model by name, with fresh, downloaded or given weights: one snapshot."""

    selected_step: int | None = None
    num_classes: int | None = None

    def __init__(self, spec: str, *, pretrained: bool = False, weights: Path | None = None) -> None:
        self.spec, self.name = spec, spec
        self._pretrained, self._weights = pretrained, weights
        if pretrained and not spec.startswith("timm:"):
            raise ValueError(f"--pretrained fetches timm's weights; write timm:{spec} for them")
        origin = "fetched weights" if pretrained else f"weights of {weights.name}" if weights else "untrained"
        self.snapshots = [Snapshot(None, origin)]

    def load(self, step: int | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # an untrained model is the same one every time
            model = self._timm() if self.spec.startswith("timm:") else create_model(self.spec)
        if self._weights is not None:
            _load(model, read_weights(self._weights), str(self._weights))
        return accelerate(inspectable(model)).eval()

    def image_size(self, model: nn.Module) -> tuple[int, int]:
        """Height and width of the pictures it is shown."""
        return model_size(model)

    def predictions(self, outputs: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
        return surest_boxes(outputs, size) if isinstance(outputs, DetectorOutputs) else top_classes(outputs)

    def _timm(self) -> nn.Module:
        name = self.spec.removeprefix("timm:")
        try:
            return timm_model(name, fetch=self._pretrained)
        except OSError as error:
            raise ValueError(f"the weights of {name} could not be fetched: {error}") from error


class RunSource:
    """A training run: its selected weights, its kept checkpoints, and how it began."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)
        self.spec, self.name = str(path), self.run.name
        kind = task_kind(self.run.recipe().task)
        if kind.inspect is None:
            raise ValueError(f"{path} is a run of {kind.name}, whose models cannot be looked into")
        self.inspected = kind.inspect(self.run)
        self.num_classes: int | None = len(self.inspected.classes)
        try:
            self._best = self.run.checkpoints().pointed(BEST)
        except DiskError as error:
            raise ValueError(str(error)) from error
        self.snapshots = [Snapshot(0, "before training")]
        for step in self.run.checkpoints().steps():
            self.snapshots.append(Snapshot(step, f"step {step}" + (" (selected)" if step == self._best else "")))

    @property
    def selected_step(self) -> int:
        """The step of the weights that are shown first."""
        return self.snapshots[-1].step or 0 if self._best is None else self._best

    def load(self, step: int | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash32(self.inspected.recipe.seed, INITIALISATION_STREAM))
            model = self.inspected.fresh_model()
        if (step is None and len(self.snapshots) > 1) or (step is not None and step == self._best):
            load_weights(model, self.run.selected_weights(), self.name)
        elif step:
            try:
                weights = self.run.checkpoints().load(step).tensors[MODEL]
            except DiskError as error:
                raise ValueError(str(error)) from error
            load_weights(model, weights, f"step {step} of {self.name}")
        return accelerate(inspectable(model)).eval()

    def image_size(self, model: nn.Module) -> tuple[int, int]:
        """Height and width of the pictures it is shown: the run's own, up to what a detector's stride divides."""
        height, width = self.inspected.picture_size
        stride = model.stride if isinstance(model, Detector) else 1
        return -(-height // stride) * stride, -(-width // stride) * stride

    def predictions(self, outputs: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
        return self.inspected.predictions(outputs, size)


Source = ModelSource | RunSource


def open_source(spec: str, *, pretrained: bool = False, weights: Path | None = None) -> Source:
    """Recognise a run folder, `timm:NAME` or one of our models' names; a ValueError says what is wrong with any
    other."""
    path = Path(spec)
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise ValueError(f"{spec} is a folder but no run: it has no {CONFIG}")
        if pretrained or weights is not None:
            raise ValueError(f"{spec} is a run and has its own weights; --pretrained and --weights are for model names")
        return RunSource(path)
    source = ModelSource(spec, pretrained=pretrained, weights=weights)
    if not spec.startswith("timm:"):
        with torch.device("meta"):
            create_model(spec)  # raises for an unknown name, with the nearest known ones
    return source


def untrained(source: Source) -> nn.Module:
    """What a source was before training: exactly for a run, a model like it otherwise."""
    return source.load(0) if isinstance(source, RunSource) else ModelSource(source.spec).load()


def _load(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Weights under our names, or under timm's and the released ConViT's."""
    own = model.state_dict().keys()
    load_weights(model, weights if weights.keys() == own else from_timm(weights), origin)


NamedPicture = tuple[str, np.ndarray]
NUM_SAMPLES, LONGEST_SIDE = 12, 1024


@dataclass(frozen=True)
class Pictures:
    """A set of pictures to look at, in which order, and what it is called."""

    images: Any
    in_turn: Callable[[Any], Iterator[NamedPicture]]
    origin: str

    def take(self, count: int) -> list[NamedPicture]:
        """(name, uint8 [H, W, 3]) of exactly this many."""
        taken = self.at_most(count)
        if len(taken) < count:
            raise ValueError(f"{self.origin}: there are {len(taken)} pictures, not {count}")
        return taken

    def at_most(self, count: int) -> list[NamedPicture]:
        """As `take`, fewer where there are fewer that can be read."""
        return list(islice(self.in_turn(self.images), count))

    def samples(self) -> list[NamedPicture]:
        """A few, none of them large."""
        shown = []
        for name, pixels in self.at_most(NUM_SAMPLES):
            image = Image.fromarray(pixels)
            image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            shown.append((name, np.asarray(image)))
        return shown


def pictures_of(sources: Sequence[Source]) -> Pictures:
    """What all sources are shown: the validation pictures of the first run among them whose data is still there and
    unchanged, the bundled ones otherwise."""
    missing = ""
    run = next((source for source in sources if isinstance(source, RunSource)), None)
    if run is not None:
        try:
            return _own_pictures(run)
        except (ValueError, OSError) as error:
            missing = f" (the run's own cannot be used: {error})"
    return Pictures(open_data(SAMPLES).test, in_turn, f"the bundled photographs of clothing{missing}")


def _own_pictures(source: RunSource) -> Pictures:
    images = source.inspected.validation_images()
    data = source.inspected.recipe.data
    known = (source.run.read_json(DATA) or {}).get("val")
    if known is not None and images.fingerprint() != known:
        raise ValueError(f"{data} has changed since")
    origin = f"the validation pictures of {source.name} ({without_home(data)})"
    return Pictures(images, source.inspected.in_turn, origin)
