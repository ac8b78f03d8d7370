"""An experiment as data: a file in `experiments/` with the rows that are compared, and how each scale trains them.

    sample_efficiency.yaml → load_experiment("sample_efficiency").runs("cpu") → convit-f10-s0, …

`rows` are compared with one another; `settings` are fields of a recipe. A row `of` another one changes that one's
settings; arguments of models are merged one by one. An experiment that is `like` another has its recipe, settings, rows
and, at the scales that it names, all but `rows` and `fractions`; it may change them. Runs in which nothing is changed
are the other's, and are not repeated. With `rates` it has, of each row named there, one for each learning rate. A scale
that names a `recipe` of its own starts from that alone; the others change the experiment's settings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.recipes.files import apply_changes, named_recipe
from nearsight.reproduce.files import as_list, as_mapping, check_keys, read_mapping

SCALES = ("smoke", "cpu", "gpu", "full")
FOLDER = Path(str(files("nearsight.reproduce") / "experiments"))

_WHAT_RUNS_HAVE: dict[str, Any] = {"select": "last", "report": False, "keep": 1}
"""The last weights are tested. Choosing them on val would favour the model whose curve is noisier."""
_SET_BY_THE_RUN = ("data", "fraction", "seed", "epochs", "warmup_epochs", "eval_every", "teacher", *_WHAT_RUNS_HAVE)


@dataclass(frozen=True)
class Row:
    """One of the things that an experiment compares."""

    name: str
    title: str
    settings: Mapping[str, Any]
    reported: str = ""
    """What the paper has in its place, for the page."""
    teacher: str = ""
    """The row whose run of the same seed and fraction teaches this one."""
    base: str = ""
    """The row of which this one is a variant."""
    home: Experiment | None = None
    """The experiment that it was taken from."""


@dataclass(frozen=True)
class Scale:
    """How an experiment is run at one scale. Every run of it sees the same number of samples."""

    name: str
    reduction: str
    """What is smaller than in the paper."""
    data: str
    samples: int
    evaluations: int
    warmup: float
    """The share of the run in which the learning rate rises."""
    rows: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    recipe: str
    alone: bool
    """The settings of the experiment and of its rows do not count here."""
    settings: Mapping[str, Any]
    row_settings: Mapping[str, Mapping[str, Any]]
    images_per_second: Mapping[str, float]
    """Of a row on one core, or on the GPU: measured before, for the plan alone."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment: a row, a fraction of the training images, a seed."""

    experiment: Experiment
    scale: Scale
    row: Row
    fraction: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row.name}-f{100 * self.fraction:g}-s{self.seed}"

    @property
    def teacher(self) -> PlannedRun | None:
        if not self.row.teacher:
            return None
        row = self.experiment.rows[self.row.teacher]
        return PlannedRun(self.experiment, self.scale, row, self.fraction, self.seed).at_home()

    def at_home(self) -> PlannedRun:
        """The same run in the experiment that its row was taken from, where that has it."""
        home = self.row.home
        at = home.scales.get(self.scale.name) if home else None
        if home is None or at is None or self.row.name not in at.rows:
            return self
        there = PlannedRun(home, at, home.rows[self.row.name], self.fraction, self.seed)
        is_one = self.fraction in at.fractions and self.seed in at.seeds and there.hash() == self.hash()
        return there if is_one else self

    def changes(self) -> dict[str, Any]:
        """What the run sets of its recipe, but for its data and its length. Its teacher is named by its row."""
        scale = self.scale
        shared = () if scale.alone else (self.experiment.settings, self.row.settings)
        own = _merged(*shared, scale.settings, scale.row_settings.get(self.row.name, {}))
        taught = {"teacher": self.row.teacher} if self.row.teacher else {}
        return {**own, **taught, **_WHAT_RUNS_HAVE, "fraction": self.fraction, "seed": self.seed}

    def recipe(self, **more: Any) -> ClassificationRecipe:
        base = named_recipe(self.scale.recipe)
        if not isinstance(base, ClassificationRecipe):
            raise ValueError(f"{self.experiment.name}: recipe {self.scale.recipe} is for {base.task}")
        where = f"{self.experiment.name}, {self.scale.name}, row {self.row.name}"
        return apply_changes(base, {**self.changes(), **more}, where=where)

    def length(self, epoch_size: int) -> dict[str, float]:
        """The fields of the run's length where an epoch shows `epoch_size` samples: whole steps between evaluations."""
        batch = self.recipe().batch
        between = max(1, round(self.scale.samples / batch / self.scale.evaluations))
        epochs = between * self.scale.evaluations / (epoch_size // batch)
        return {
            "epochs": epochs,
            "warmup_epochs": self.scale.warmup * epochs,
            "eval_every": epochs / self.scale.evaluations,
        }

    def hash(self) -> str:
        """Of everything that decides what is learned, apart from the data."""
        recipe, default = self.recipe().as_dict(), ClassificationRecipe().as_dict()
        free = [name for name in recipe if ClassificationRecipe.change_rule(name) == "free"]
        ignored = {*free, "data", "epochs", "warmup_epochs"}
        told = {name: value for name, value in recipe.items() if name not in ignored and value != default[name]}
        length = {"samples": self.scale.samples, "warmup": self.scale.warmup, "evaluations": self.scale.evaluations}
        text = json.dumps({**told, **length}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Experiment:
    """A question, the rows that answer it, and how each scale trains them."""

    name: str
    source_file: Path
    question: str
    source: str
    reads_test: bool
    recipe: str
    settings: Mapping[str, Any]
    rows: Mapping[str, Row]
    scales: Mapping[str, Scale]
    told_scales: Mapping[str, Mapping[str, Any]]
    """As the file has them, for experiments that are like this one."""

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise ValueError(f"{self.name} has no scale {name!r}; it has {', '.join(self.scales)}")
        return self.scales[name]

    def runs(self, scale: str) -> list[PlannedRun]:
        """In the order in which they run: every row and fraction of a seed before the next seed."""
        at = self.scale(scale)
        return [
            PlannedRun(self, at, self.rows[row], fraction, seed).at_home()
            for seed in at.seeds
            for fraction in at.fractions
            for row in at.rows
        ]

    def run(self, scale: str, name: str) -> PlannedRun:
        for run in self.runs(scale):
            if run.name == name:
                return run
        raise ValueError(f"{self.name} has no run {name!r} at scale {scale}")


def experiment_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def all_experiments() -> Iterator[Experiment]:
    return map(load_experiment, experiment_names())


def load_experiment(name: str) -> Experiment:
    """The experiment of this name, or that of a YAML file."""
    if name.endswith(".yaml"):
        return _read(Path(name))
    if name not in experiment_names():
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(experiment_names())}")
    return _own(name)


@cache
def _own(name: str) -> Experiment:
    return _read(FOLDER / f"{name}.yaml")


def _read(path: Path) -> Experiment:
    told = read_mapping(path)
    others = ("like", "recipe", "settings", "rows", "rates", "reads_test")
    check_keys(told, str(path), needed=("question", "source", "scales"), others=others)
    like = load_experiment(str(told["like"])) if "like" in told else None
    recipe = str(told.get("recipe", like.recipe if like else "small"))
    settings = {**(like.settings if like else {}), **_settings(told.get("settings", {}), f"{path}: settings")}
    rows = {name: dataclasses.replace(row, home=row.home or like) for name, row in like.rows.items()} if like else {}
    for row, value in as_mapping(told.get("rows", {}), f"{path}: rows").items():
        rows[row] = _row(row, value, rows, f"{path}: row {row}")
    if "rates" in told:
        rows = dict(_rows_of_rates(rows, as_mapping(told["rates"], f"{path}: rates"), f"{path}: rates"))
    for own in rows.values():
        if own.teacher and (own.teacher not in rows or rows[own.teacher].teacher):
            raise ValueError(f"{path}: row {own.name}: its teacher {own.teacher!r} is no row without a teacher")
    told_scales = {}
    for scale, value in as_mapping(told["scales"], str(path)).items():
        taken = like.told_scales.get(scale, {}) if like else {}
        kept = {key: one for key, one in taken.items() if key not in ("rows", "fractions")}
        told_scales[scale] = {**kept, **as_mapping(value, f"{path}: scale {scale}")}
    scales = {name: _scale(name, value, recipe, rows, f"{path}: scale {name}") for name, value in told_scales.items()}
    experiment = Experiment(
        name=path.stem,
        source_file=path,
        question=str(told["question"]),
        source=str(told["source"]),
        reads_test=bool(told.get("reads_test", True)),
        recipe=recipe,
        settings=settings,
        rows=rows,
        scales=scales,
        told_scales=told_scales,
    )
    for scale in scales:
        for run in experiment.runs(scale):
            run.recipe()  # a wrong field, or value of one, is told before anything runs
    return experiment


def _row(name: str, value: Any, before: Mapping[str, Row], where: str) -> Row:
    told = as_mapping(value, where)
    check_keys(told, where, needed=("title",), others=("of", "settings", "reported", "teacher"))
    of, settings = str(told.get("of", "")), _settings(told.get("settings", {}), where)
    if of and of not in before:
        raise ValueError(f"{where}: there is no row {of!r} before it")
    settings = _merged(before[of].settings, settings) if of else settings
    reported, teacher = str(told.get("reported", "")), str(told.get("teacher", ""))
    return Row(name, str(told["title"]), settings, reported, teacher, base=of)


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which later ones win, among the arguments of models each for itself."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update({**layer, "model_options": {**merged.get("model_options", {}), **layer.get("model_options", {})}})
    return merged


def _rows_of_rates(rows: Mapping[str, Row], rates: dict[str, Any], where: str) -> Iterator[tuple[str, Row]]:
    for name, wanted in rates.items():
        if name not in rows:
            raise ValueError(f"{where}: there is no row {name!r}; there are {', '.join(rows)}")
        row = rows[name]
        for rate in as_list(wanted, f"{where}: {name}", float):
            one = f"{name}-{rate:g}"
            yield one, Row(one, f"{row.title}, {rate:g}", {**row.settings, "lr": rate}, teacher=row.teacher, base=name)


def _settings(value: Any, where: str) -> dict[str, Any]:
    told = as_mapping(value, where)
    for name in told:
        if name in _SET_BY_THE_RUN:
            raise ValueError(f"{where}: {name!r} is set by the run itself")
    return told


def _scale(name: str, value: Any, recipe: str, rows: Mapping[str, Row], where: str) -> Scale:
    told = as_mapping(value, where)
    length, models = ("evaluations", "warmup"), ("recipe", "settings", "row_settings")
    others = ("reduction", *length, "rows", "fractions", *models, "images_per_second")
    check_keys(told, where, needed=("data", "samples", "seeds"), others=others)
    if name not in SCALES:
        raise ValueError(f"{where}: the scales are {', '.join(SCALES)}")
    chosen = tuple(as_list(told.get("rows", list(rows)), f"{where}: rows", str))
    row_settings = {
        row: _settings(settings, f"{where}: row_settings") for row, settings in told.get("row_settings", {}).items()
    }
    speeds = as_mapping(told.get("images_per_second", {}), where)
    bases = {row.base for row in rows.values()}
    for row in (*chosen, *row_settings, *speeds):
        if row not in rows and row not in bases:
            raise ValueError(f"{where}: there is no row {row!r}; there are {', '.join(rows)}")
    samples = told["samples"]
    if not isinstance(samples, int) or samples < 1:
        raise ValueError(f"{where}: samples must be a whole number above 0, got {samples!r}")
    return Scale(
        name=name,
        reduction=str(told.get("reduction", "")),
        data=str(told["data"]),
        samples=samples,
        evaluations=int(told.get("evaluations", 10)),
        warmup=float(told.get("warmup", 0.05)),
        rows=chosen,
        fractions=tuple(as_list(told.get("fractions", [1.0]), f"{where}: fractions", (int, float))),
        seeds=tuple(as_list(told["seeds"], f"{where}: seeds", int)),
        recipe=str(told.get("recipe", recipe)),
        alone="recipe" in told,
        settings=_settings(told.get("settings", {}), where),
        row_settings=row_settings,
        images_per_second=speeds,
    )
