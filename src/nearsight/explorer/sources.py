"""What can be looked into, by what a person types: a run folder, a model's name, or `timm:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nearsight.analysis.pictures import DEFAULT_SIZE, model_size
from nearsight.analysis.walk import inspectable
from nearsight.classification.model import build_classifier, timm_model
from nearsight.images.augmentation import IMAGENET_MEAN, IMAGENET_STD
from nearsight.models import create_model
from nearsight.randomness import INITIALISATION_STREAM, hash32
from nearsight.recipes.files import thaw
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder, class_names
from nearsight.runs.layout import CLASSES, CONFIG
from nearsight.weights.files import read_weights
from nearsight.weights.loading import load_weights
from nearsight.weights.timm import from_timm


@dataclass(frozen=True)
class Snapshot:
    """One moment of a model: step 0 is before training, None are the selected or only weights."""

    step: int | None
    label: str


class ModelSource:
    """A model by name, with fresh, downloaded or given weights: one snapshot."""

    selected_step: int | None = None

    def __init__(self, spec: str, *, pretrained: bool = False, weights: Path | None = None) -> None:
        self.spec, self.name = spec, spec
        self._pretrained, self._weights = pretrained, weights
        if pretrained and not spec.startswith("timm:"):
            raise ValueError(f"--pretrained fetches timm's weights; write timm:{spec} for them")
        origin = "fetched weights" if pretrained else f"weights of {weights.name}" if weights else "untrained"
        self.snapshots = [Snapshot(None, origin)]
        self.classes: list[str] | None = None

    def load(self, step: int | None = None) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # an untrained model is the same one every time
            model = self._timm() if self.spec.startswith("timm:") else create_model(self.spec)
        if self._weights is not None:
            _load(model, read_weights(self._weights), str(self._weights))
        return inspectable(model).eval()

    def _timm(self) -> nn.Module:
        name = self.spec.removeprefix("timm:")
        try:
            return timm_model(name, pretrained=self._pretrained)
        except OSError as error:
            raise ValueError(f"the weights of {name} could not be fetched: {error}") from error


class RunSource:
    """A training run: its selected weights, its kept checkpoints, and how it began."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)
        self.spec, self.name = str(path), self.run.name
        self.recipe = thaw(path / CONFIG).with_changes(init_from="")
        if self.recipe.task != "classification":
            raise ValueError(f"{path} is a run of {self.recipe.task}; only runs of classification can be looked into")
        self.classes: list[str] | None = class_names(path)
        if not self.classes:
            raise ValueError(f"{path} has no {CLASSES}: it is not a run of `nearsight train`, or it has not started")
        best = self.run.checkpoints().pointed("best")
        self.snapshots = [Snapshot(0, "before training")]
        for step in self.run.checkpoints().steps():
            self.snapshots.append(Snapshot(step, f"step {step}" + (" (selected)" if step == best else "")))

    @property
    def selected_step(self) -> int:
        """The step of the weights that are shown first."""
        best = self.run.checkpoints().pointed("best")
        return self.snapshots[-1].step or 0 if best is None else best

    def load(self, step: int | None = None) -> nn.Module:
        assert self.classes is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash32(self.recipe.seed, INITIALISATION_STREAM))
            model = build_classifier(self.recipe, len(self.classes))
        if step is None and len(self.snapshots) > 1:
            load_weights(model, self.run.selected_weights(), self.name)
        elif step:
            try:
                weights = self.run.checkpoints().load(step).tensors["model"]
            except DiskError as error:
                raise ValueError(str(error)) from error
            load_weights(model, weights, f"step {step} of {self.name}")
        if self.recipe.model.startswith("timm:"):  # trained here, hence on pictures normalised as all are here
            model.pretrained_cfg = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}  # type: ignore[assignment]
        return inspectable(model).eval()


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
            create_model(spec)  # an unknown name is an error now, with its nearest relatives
    return source


def image_size(source: Source, model: nn.Module) -> tuple[int, int]:
    """Height and width of the pictures a model is shown."""
    size = model_size(model)
    if isinstance(source, RunSource) and size == DEFAULT_SIZE:
        return source.recipe.image_size, source.recipe.image_size
    return size


def untrained(source: Source) -> nn.Module:
    """What a source was before training: exactly for a run, a model like it otherwise."""
    return source.load(0) if isinstance(source, RunSource) else ModelSource(source.spec).load()


def _load(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Weights under our names, or under timm's and the released ConViT's."""
    own = model.state_dict().keys()
    load_weights(model, weights if weights.keys() == own else from_timm(weights), origin)
