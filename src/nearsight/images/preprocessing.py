"""How a model wants its pictures: what is subtracted and divided per channel, and how pictures are resized."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
AUTO = "auto"
INTERPOLATIONS = ("bicubic", "bilinear")

Channels = tuple[float, float, float]


class Preprocessing(NamedTuple):
    """Of pictures in 0..1; ImageNet's unless something else is said."""

    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    interpolation: str = "bicubic"

    @classmethod
    def stated(cls, mean: str = AUTO, std: str = AUTO, interpolation: str = AUTO) -> Preprocessing:
        """As a recipe spells it: three numbers with commas between them, or `auto`."""
        return cls(
            IMAGENET_MEAN if mean == AUTO else _three("mean", mean),
            IMAGENET_STD if std == AUTO else _three("std", std, positive=True),
            "bicubic" if interpolation == AUTO else interpolation,
        )

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Preprocessing:
        """What timm's `pretrained_cfg` says, in a model or in a config.json. Other interpolations become bicubic."""
        mean, std = (_of_list(key, config.get(key), usual) for key, usual in (("mean", cls().mean), ("std", cls().std)))
        interpolation = config.get("interpolation")
        return cls(mean, std, interpolation if interpolation in INTERPOLATIONS else "bicubic")

    @property
    def normalisation(self) -> tuple[Channels, Channels]:
        return self.mean, self.std

    @property
    def fill(self) -> tuple[int, int, int]:
        """The colour in 0..255 that normalising turns into about zero."""
        red, green, blue = (round(255 * channel) for channel in self.mean)
        return red, green, blue

    def fields(self) -> dict[str, str]:
        """As a recipe spells it; `stated` reads it."""
        spelled = {name: ",".join(f"{x:g}" for x in getattr(self, name)) for name in ("mean", "std")}
        return {**spelled, "interpolation": self.interpolation}


def preprocessing_of(model: Any) -> Preprocessing:
    """How a model was shown pictures in training: `pretrained_cfg`, as timm calls it; ImageNet's where it has none."""
    config = getattr(model, "pretrained_cfg", None)
    return Preprocessing.of_config(config) if isinstance(config, Mapping) else Preprocessing()


def _three(name: str, text: str, *, positive: bool = False) -> Channels:
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{name} is three numbers with commas between them, such as 0.5,0.5,0.5, or auto; got {text!r}"
        ) from None
    if not all(math.isfinite(x) and (x > 0 or not positive) for x in (red, green, blue)):
        raise ValueError(f"{name} must be of {'positive' if positive else 'finite'} numbers, got {text!r}")
    return red, green, blue


def _of_list(name: str, value: Any, usual: Channels) -> Channels:
    if value is None:
        return usual
    if not isinstance(value, list | tuple) or not all(isinstance(x, int | float) for x in value):
        raise ValueError(f"{name} of a pretrained_cfg must list numbers, not {value!r}")
    return _three(name, ",".join(map(str, value)), positive=name == "std")
