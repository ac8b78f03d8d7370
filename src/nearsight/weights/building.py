"""`nearsight.create_model` with weights: the network that they are for, started from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearsight.images.preprocessing import Preprocessing
from nearsight.models import create_model
from nearsight.models.registry import arguments_of, backbone_of
from nearsight.untrusted.model_size import check_size
from nearsight.weights.fitting import start_from
from nearsight.weights.names import STYLES
from nearsight.weights.sources import TIMM, Network, Weights, find_weights


def create_started(name: str, source: str | Path | Weights, *, download: bool = False, **arguments: Any) -> nn.Module:
    """A model of ours with weights of any source; without a name, of the network that the source is for.

    What the source says of that network (options, image size, number of classes) holds unless `arguments` say
    otherwise. `model.weights_report` tells what became of the weights, `model.pretrained_cfg` how its pictures are to
    be shown.
    """
    weights = source if isinstance(source, Weights) else find_weights(source, download=download)
    network = chosen_network(name, weights)
    if network.model.startswith(TIMM):
        bare = network.model.removeprefix(TIMM)
        raise ValueError(
            f"{weights.source} is for timm's {bare}, which nearsight has no model of; timm.create_model builds it"
        )
    tensors = weights.read()
    stated: dict[str, Any] = dict(network.options)
    if network.image_size and "img_size" in arguments_of(network.model) and backbone_of(network.model) is None:
        stated["img_size"] = network.image_size
    if (count := _num_classes(tensors)) is not None:
        stated["num_classes"] = count
    build = partial(create_model, network.model, **{**stated, **arguments})
    check_size(build, network.model)
    model = build()
    model.weights_report = start_from(model, weights, tensors=tensors)  # type: ignore[assignment]
    show_as(model, weights.preprocessing)
    return model


def show_as(model: nn.Module, preprocessing: Preprocessing | None) -> None:
    """Let a model say how its pictures are to be shown, where that is known; `images.preprocessing_of` reads it."""
    if preprocessing is not None:
        told = getattr(model, "pretrained_cfg", None)
        model.pretrained_cfg = {**(told or {}), **preprocessing._asdict()}  # type: ignore[assignment]


def chosen_network(name: str, weights: Weights) -> Network:
    """The network called `name`, with the options that the source has for it; the source's own without a name."""
    own = weights.network
    if not name:
        if own is None:
            raise ValueError(f"{weights.source} does not say which network it is for: name one")
        return own
    return own if own is not None and own.model == name else Network(name, {}, 0)


def _num_classes(tensors: Mapping[str, Tensor]) -> int | None:
    """How many classes weights are for; None where they have no head."""
    for _, translate in STYLES:
        named = translate(tensors)
        for head in ("head.weight", "fc.weight"):
            if head in named:
                return len(named[head])
        classes, boxes = (named.get(f"heads.{part}.predictor.weight") for part in ("classes", "boxes"))
        if classes is not None and boxes is not None:
            return len(classes) // (len(boxes) // 4)  # four numbers for each anchor
    return None
