"""Every classifier of nearsight by `timm.create_model`, once this is imported.

    import timm, nearsight.timm
    model = timm.create_model("nearsight_convit_tiny", num_classes=10)
    maps = timm.create_model("nearsight_convit_tiny", features_only=True)

timm's scripts know them when called through this module: `python -m nearsight.timm validate.py DATA --model …`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, get_pretrained_cfg, register_model
from torch import nn

from nearsight.models import create_model, list_models
from nearsight.models.registry import backbone_of
from nearsight.models.saving import PREFIX, timm_config
from nearsight.timm.wrappers import TimmForm, timm_form
from nearsight.weights import from_timm
from nearsight.weights.sources import TWINS as SAME_AS_TIMM

TWINS = {ours: theirs for theirs, ours in SAME_AS_TIMM.items()}
"""Our names → timm's of the same network, whose published weights `pretrained=True` takes."""


def _published(name: str) -> dict[str, Any]:
    """Where timm has weights for the network of this name."""
    theirs = get_pretrained_cfg(TWINS[name]) if name in TWINS else None
    return {} if theirs is None else {"hf_hub_id": theirs.hf_hub_id, "url": theirs.url, "file": theirs.file}


def _entry(name: str) -> Callable[..., nn.Module]:
    def entry(pretrained: bool = False, **arguments: Any) -> nn.Module:
        last = {"out_indices": (0, 1, 2, 3, 4)} if "resnet" in name else {"out_indices": 3}
        return build_model_with_cfg(
            lambda **given: timm_form(name, **given),
            PREFIX + name,
            pretrained,
            pretrained_filter_fn=lambda state, model: from_timm(state.get("model", state)),
            feature_cfg={"feature_cls": "getter", **last},
            **arguments,
        )

    entry.__name__ = entry.__qualname__ = PREFIX + name
    entry.__doc__ = f"`{name}` of nearsight."
    return entry


def _register_all() -> None:
    names = [name for name in list_models() if backbone_of(name) is None]
    for name in names:
        # What is told is the same at any depth.
        shallow: dict[str, Any] = {"layers": (1, 1, 1, 1)} if "resnet" in name else {"depth": 3}
        with torch.device("meta"):
            model = create_model(name, **shallow)
        default_cfgs.update(generate_default_cfgs({PREFIX + name: {**timm_config(model), **_published(name)}}))
        globals()[PREFIX + name] = register_model(_entry(name))


default_cfgs: dict[str, Any] = {}
__all__ = ["PREFIX", "TWINS", "TimmForm"]
_register_all()
