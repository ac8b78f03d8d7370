"""What can be looked into, by what a person types: a run, a hub folder, a model's name, or published weights.

And what it is shown when no picture is named: a run's own validation set, else bundled pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from nearsight.acceleration import accelerate
from nearsight.analysis.pictures import SAMPLES, in_turn, model_size
from nearsight.analysis.walk import Detector, inspectable
from nearsight.classification.model import timm_arguments, timm_model
from nearsight.classification.use import top_classes
from nearsight.datasets.sources import open_data
from nearsight.detection.anchors import DetectorOutputs
from nearsight.detection.use import surest_boxes
from nearsight.images.fingerprints import same_data
from nearsight.models import create_model
from nearsight.randomness import INITIALISATION_STREAM, hash32
from nearsight.recipes.foreign import check_arguments
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import BEST, DATA, MODEL
from nearsight.tasks import task_kind
from nearsight.text import without_home
from nearsight.untrusted.model_size import check_size
from nearsight.weights import (
    chosen_network,
    create_started,
    find_weights,
    head_prefixes,
    load_weights,
    show_as,
    start_from,
)
from nearsight.weights.sources import HUB, PUBLISHED, TIMM, TORCHVISION


@dataclass(frozen=True)
class Snapshot:
    """One moment of a model: step 0 is before training, None are the selected or only weights."""

    step: int | None
    label: str


class ModelSource:
    """A model by name, with fresh weights or those of a source: one snapshot."""

    selected_step: int | None = None
    num_classes: int | None = None

    def __init__(self, spec: str, *, weights: str = "", download: bool = False) -> None:
        self.spec, self.name = spec, spec
        self._weights = find_weights(weights, download=download) if weights else None
        self._network = chosen_network("" if spec == weights else spec, self._weights) if self._weights else None
        self.snapshots = [Snapshot(None, f"weights of {without_home(weights)}" if weights else "untrained")]

    def load(self, step: int | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # an untrained model is the same one every time
            model = self._fresh() if self._weights is None or self._network is None else self._started()
        return accelerate(inspectable(model)).eval()

    def image_size(self, model: nn.Module) -> tuple[int, int]:
        """Height and width of the pictures it is shown."""
        return model_size(model)

    def predictions(self, outputs: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
        return surest_boxes(outputs, size) if isinstance(outputs, DetectorOutputs) else top_classes(outputs)

    def _fresh(self) -> nn.Module:
        return timm_model(self.spec.removeprefix(TIMM)) if self.spec.startswith(TIMM) else create_model(self.spec)

    def _started(self) -> nn.Module:
        """With the weights, and as many classes as they have."""
        assert self._weights is not None
        assert self._network is not None
        if not self._network.model.startswith(TIMM):
            return create_started(self._network.model, self._weights)
        tensors = self._weights.read()
        name, options = self._network.model.removeprefix(TIMM), dict(self._network.options)
        check_arguments(name, options, timm_arguments(name))
        check_size(partial(timm_model, name, **options), self._network.model)
        model = timm_model(name, **options)
        head = next(
            (tensors[f"{prefix}weight"] for prefix in head_prefixes(model) if f"{prefix}weight" in tensors), None
        )
        if head is not None:
            model = timm_model(name, **{**options, "num_classes": len(head)})
        start_from(model, self._weights, tensors=tensors)
        show_as(model, self._weights.preprocessing)
        return model


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
        steps = self.run.checkpoints().steps()
        # A converted run has its first weights as those of step 0. A run keeps no copy of others that it started from.
        self._keeps_first, self._has_weights = 0 in steps, bool(steps)
        self._began_fresh = not self.run.recipe().weights and not self._keeps_first
        self.snapshots = [Snapshot(0, "before training")] if self._began_fresh else []
        for step in steps:
            self.snapshots.append(Snapshot(step, f"step {step}" + (" (selected)" if step == self._best else "")))

    @property
    def selected_step(self) -> int:
        """The step of the weights that are shown first."""
        return (self.snapshots[-1].step or 0 if self.snapshots else 0) if self._best is None else self._best

    def load(self, step: int | None = None) -> nn.Module:
        if not self._began_fresh and not self._keeps_first and (step == 0 or not self.snapshots):
            began = without_home(self.run.recipe().weights)
            raise ValueError(f"{self.name} started from the weights {began}, of which it keeps no copy: open those")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash32(self.inspected.recipe.seed, INITIALISATION_STREAM))
            model = self.inspected.fresh_model()
        if (step is None and self._has_weights) or (step is not None and step == self._best):
            load_weights(model, self.run.selected_weights(), self.name)
        elif step or (step == 0 and self._keeps_first):
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


def open_source(spec: str, *, weights: str = "", download: bool = False) -> Source:
    """Recognise a run folder, a hub folder, `timm:NAME`, other published weights or one of our models' names.

    `weights` are for a model by name; `download` alone fetches the published ones of `timm:NAME`. A ValueError says
    what is wrong with any other.
    """
    path = Path(spec)
    if path.is_dir():
        if weights or download:
            raise ValueError(f"{spec} has its own weights; --weights and --download are for names of models")
        return RunSource(path) if RunFolder(path).has_config else ModelSource(spec, weights=spec)
    published = spec.startswith((HUB, TORCHVISION)) or (download and not weights)
    if spec.startswith(PUBLISHED) or weights:
        return ModelSource(spec, weights=weights or (spec if published else ""), download=download)
    if download:
        raise ValueError(f"--download has nothing to fetch for {spec}: name its weights, as in --weights timm:{spec}")
    with torch.device("meta"):
        create_model(spec)  # raises for an unknown name, with the nearest known ones
    return ModelSource(spec)


def untrained(source: Source) -> nn.Module:
    """What a source was before training: exactly for a run, a model like it otherwise."""
    return source.load(0) if isinstance(source, RunSource) else ModelSource(source.spec).load()


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
    if known is not None and not same_data(known, images.fingerprint()):
        raise ValueError(f"{data} has changed since")
    origin = f"the validation pictures of {source.name} ({without_home(data)})"
    return Pictures(images, source.inspected.in_turn, origin)
