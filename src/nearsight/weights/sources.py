"""Where weights come from, by what a person types: a run, a file, a hub folder, or a published name.

Nothing connects unless `download` says so. What was found says how its pictures were shown and, where it is known,
which network it is for; tensors are read when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nearsight.images.preprocessing import Preprocessing
from nearsight.models.saving import PREFIX as OURS
from nearsight.recipes.foreign import PREFIX, check_model
from nearsight.runs.folder import RunFolder, class_names
from nearsight.runs.layout import CLASSES
from nearsight.text import printable
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import SETTINGS_BYTES
from nearsight.weights.files import read_file

PUBLISHED = TIMM, HUB, TORCHVISION = (PREFIX, "hub:", "torchvision:")
HUB_CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")

# Networks of ours that are the same as one of timm's, tensor by tensor; by timm's name without its tag.
TWINS = {
    "convit_tiny": "convit_tiny",
    "convit_small": "convit_small",
    "convit_base": "convit_base",
    "deit_tiny_patch16_224": "deit_tiny",
    "deit_small_patch16_224": "deit_small",
    "deit_base_patch16_224": "deit_base",
    "deit_tiny_distilled_patch16_224": "deit_tiny_distilled",
    "deit_small_distilled_patch16_224": "deit_small_distilled",
    "deit_base_distilled_patch16_224": "deit_base_distilled",
    "resnet50": "resnet50",
}


class Network(NamedTuple):
    """Which network weights are for: its name in `--model`, its arguments, and the side of its pictures (0: any)."""

    model: str
    options: dict[str, Any]
    image_size: int


@dataclass(frozen=True)
class Weights:
    """Weights that were found, and what their source says of them."""

    source: str
    read: Callable[[], dict[str, Tensor]]
    network: Network | None = None
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()
    batch_norm_eps: float | None = None
    """Of the batch norms that the weights were trained with, where it is not the model's own."""


def find_weights(source: str | Path, *, download: bool = False) -> Weights:
    """What `source` names; a ValueError says what is wrong, or that it would have to be fetched."""
    text = str(source)
    if text.startswith(PUBLISHED):
        from nearsight.weights.published import find_published

        return find_published(text, download=download)
    path = Path(source)
    if not path.is_dir():
        return Weights(text, lambda: read_file(path))
    if RunFolder(path).has_config:
        return _of_run(path)
    if (path / HUB_CONFIG).is_file():
        files = {name: path / name for name in HUB_WEIGHTS if (path / name).is_file()}
        if not files:
            raise ValueError(f"{path} has a {HUB_CONFIG} and no weights ({' or '.join(HUB_WEIGHTS)})")
        file = next(iter(files.values()))
        return of_config(text, read_config(path / HUB_CONFIG), lambda: read_file(file))
    raise ValueError(f"{path} is neither a run (with config.yaml) nor a hub folder (with {HUB_CONFIG})")


def read_weights(source: str | Path, *, download: bool = False) -> dict[str, Tensor]:
    """The tensors of any source, under the names that they have there."""
    return find_weights(source, download=download).read()


def network_of(recipe: Any) -> Network:
    """The network of a recipe."""
    return Network(recipe.model, dict(recipe.stated_options), recipe.image_size)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a hub folder."""
    try:
        config = json.loads(read_bytes(path, SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} does not hold a mapping")
    return config


def of_config(source: str, config: Mapping[str, Any], read: Callable[[], dict[str, Tensor]]) -> Weights:
    """Weights beside a config.json as timm writes it. Only names and numbers of it are used."""
    shown = config.get("pretrained_cfg")
    shown = shown if isinstance(shown, Mapping) else {}
    name, arguments = config.get("architecture", shown.get("architecture")), config.get("model_args") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(f"the {HUB_CONFIG} of {source} names no architecture: {printable(str(name))}")
    names = config.get("label_names")
    classes = tuple(map(str, names)) if isinstance(names, list) else ()
    return Weights(source, read, timm_network(name, arguments, shown), Preprocessing.of_config(shown), classes)


def timm_network(name: str, arguments: dict[str, Any], shown: Mapping[str, Any]) -> Network:
    """The network of timm's name: ours where it is the same, else timm's."""
    architecture = name.partition(".")[0]
    if architecture.startswith(OURS):
        kept = {key: value for key, value in arguments.items() if key not in ("num_classes", "img_size")}
        return Network(architecture.removeprefix(OURS), kept, _side(shown))
    check_model(TIMM + architecture, arguments)
    if architecture in TWINS and not arguments:
        return Network(TWINS[architecture], {}, _side(shown))
    return Network(TIMM + architecture, dict(arguments), _side(shown))


def _side(shown: Mapping[str, Any]) -> int:
    size = shown.get("input_size")
    return size[-1] if isinstance(size, list | tuple) and size and isinstance(size[-1], int) else 0


def _of_run(path: Path) -> Weights:
    run = RunFolder(path)
    recipe = run.recipe()
    classes = tuple(class_names(path)) if (path / CLASSES).is_file() else ()
    return Weights(str(path), run.selected_weights, network_of(recipe), recipe.preprocessing, classes)
