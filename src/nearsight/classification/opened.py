"""A trained classifier and what has to be known to use it, from a run or from a folder that was exported from one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from nearsight.acceleration import accelerate
from nearsight.classification.model import build_classifier, known_timm_model
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.engine.device import pick_device
from nearsight.images.preprocessing import Preprocessing
from nearsight.models.saving import PREFIX, WEIGHTS, is_saved, model_in_folder, read_config
from nearsight.recipes.foreign import PREFIX as TIMM
from nearsight.recipes.foreign import check_model
from nearsight.runs.folder import RunFolder, class_names
from nearsight.weights import load_weights, read_weights, trained_model

_LARGEST_SIDE = 4096


class Opened(NamedTuple):
    """In evaluation mode, accelerated."""

    model: nn.Module
    classes: list[str]
    image_size: int
    crop_ratio: float
    preprocessing: Preprocessing

    def shown(self) -> dict[str, Any]:
        """How it is shown pictures, in timm's words."""
        return {
            "input_size": (3, self.image_size, self.image_size),
            "crop_pct": self.crop_ratio,
            "crop_mode": "center",
            **self.preprocessing._asdict(),
        }


def open_classifier(source: str | Path, device: str) -> Opened:
    """The classifier of a run, with the weights that validation selected, or of a folder of `export --to hub`."""
    place = pick_device(device)
    if is_saved(source):
        opened = _of_folder(Path(source))
        return opened._replace(model=accelerate(opened.model).eval().to(place))
    folder = RunFolder(source)
    recipe = folder.recipe(ClassificationRecipe).with_changes(weights="", drop_path=0.0)
    classes = class_names(source)
    model = trained_model(build_classifier(recipe, len(classes)), folder, place)
    return Opened(model, classes, recipe.image_size, recipe.eval_crop, recipe.preprocessing)


def _of_folder(folder: Path) -> Opened:
    config = read_config(folder)
    name, shown = config["architecture"], config["pretrained_cfg"]
    if name.startswith(PREFIX):
        model = model_in_folder(folder)
    else:
        check_model(TIMM + name, config["model_args"])
        model = known_timm_model(name, config["model_args"])
        load_weights(model, read_weights(folder / WEIGHTS), str(folder))
    classes = config.get("label_names", [f"class {number}" for number in range(int(config.get("num_classes", 0)))])
    if not isinstance(classes, list) or not classes or not all(isinstance(one, str) for one in classes):
        raise ValueError(f"the config.json of {folder} does not list the names of its classes as label_names")
    side, crop = _number(folder, shown, "input_size", last=True), _number(folder, shown, "crop_pct")
    if not 1 <= side <= _LARGEST_SIDE or side % 1 or not 0 < crop <= 1:
        raise ValueError(f"the config.json of {folder} has input_size or crop_pct that no picture can have")
    return Opened(model, classes, int(side), crop, Preprocessing.of_config(shown))


def _number(folder: Path, shown: Mapping[str, Any], key: str, *, last: bool = False) -> float:
    value = shown.get(key)
    value = value[-1] if last and isinstance(value, list) and value else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the config.json of {folder} has no {key} in its pretrained_cfg")
    return value
