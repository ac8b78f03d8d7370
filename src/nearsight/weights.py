"""Weights in and out: files that may come from anyone, the names of other libraries, and putting them into a model.

Files are safetensors, or a .pth that torch reads as data only. Names of timm's ConViT are those of the released one
(180 tensors). Ours differ from it in the positional part of a GPSA layer, from timm's ViT and DeiT in nothing, and from
timm's and torchvision's ResNet in the slot of the 3×3 and the stem's prefix.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.recipes.recipe import Recipe
from nearsight.runs.folder import RunFolder

CLASSIFIER_HEADS = ("fc.", "head.", "head_dist.")
"""How the names of a classifier's last layers begin."""


def load_weights(
    model: nn.Module, weights: dict[str, Tensor], origin: str, *, may_differ: tuple[str, ...] = ()
) -> None:
    """Put ``weights`` into ``model``; every mismatch is named in one error.

    What begins with ``may_differ`` and has another shape, such as a head for other classes, keeps the model's values.
    """
    own = model.state_dict()
    kept = [name for name in own if name.startswith(may_differ) and name in weights]
    weights = {**weights, **{name: own[name] for name in kept if weights[name].shape != own[name].shape}}
    missing = sorted(set(own) - set(weights))
    unknown = sorted(set(weights) - set(own))
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    unfit = [name for name in own if name in weights and not _fits(weights[name], own[name])]
    faults = _listed(
        {
            "missing": missing,
            "unknown": unknown,
            "shapes": shapes,
            "not finite or not numbers of this kind": unfit,
        }
    )
    if faults:
        raise ValueError(f"{origin} does not fit the model: {faults}")
    model.load_state_dict({name: weights[name] for name in own})


def trained_model(model: nn.Module, run: RunFolder, device: torch.device) -> nn.Module:
    """A fresh model of a run with the weights that validation selected, in evaluation mode on the device."""
    load_weights(model, run.selected_weights(), str(run.path))
    return accelerate(model).eval().to(device)


def _listed(faults: dict[str, list[str]]) -> str:
    """The kinds of faults that there are, and the first names of each."""
    return "; ".join(
        f"{kind}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" for kind, names in faults.items() if names
    )


def _fits(value: Tensor, own: Tensor) -> bool:
    if value.is_floating_point() != own.is_floating_point():
        return False
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """The weights in a run folder (its selected ones), a .safetensors file or a .pth file. Never runs code from it."""
    path = Path(source)
    if path.is_dir():
        return RunFolder(path).selected_weights()
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return _read_pth(path)


def _read_pth(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if "GLOBAL" in line or "nsupported" in line), ""
        )
        raise ValueError(
            f"{path} was refused: it holds more than tensors, or is damaged. {reason or 'Use a .safetensors file.'}"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state dict of tensors")
    return content


def origin_recipe(source: str) -> Recipe | None:
    """The recipe of the run that `source` is the folder of; None where it is another file, or empty."""
    return RunFolder(source).recipe() if source and RunFolder(source).has_config else None


def require_network(source: str, network: str, wanted: str, advice: str) -> None:
    """Refuse weights of a run of another network than `network`; the same network for images of another size fits.

    `wanted` and `advice` finish the sentence, in which {} is the network that the run has.
    """
    origin = origin_recipe(source)
    if origin is not None and _without_size(origin.model) != _without_size(network):
        has = origin.model
        raise ValueError(f"{source} is a run of {has}, whose weights do not fit {wanted}; {advice.format(has)}")


def _without_size(name: str) -> str:
    return re.sub(r"_(32|64|96)$", "", name)


class _Rule(NamedTuple):
    """A part of a tensor's name, where in the name it stands, and what becomes of the tensor."""

    theirs: str
    ours: str
    where: str
    convert: Callable[[Tensor], Tensor] = lambda tensor: tensor  # its own inverse


_IN_BLOCK = r"(blocks\.\d+\.attn\.){}"
_IN_BOTTLENECK = r"(layer\d\.\d+\.){}(?=\.)"
_IN_STEM = r"(){}(?=\.)"
_RULES = (
    # Theirs is (δ_col, δ_row, ‖δ‖²); ours is Eq. 5's order.
    _Rule("pos_proj.weight", "v_pos", _IN_BLOCK, lambda weight: weight.flip(1)),
    _Rule("pos_proj.bias", "pos_bias", _IN_BLOCK),
    _Rule("gating_param", "gate", _IN_BLOCK),
    _Rule("conv2", "mixer", _IN_BOTTLENECK),
    _Rule("conv1", "stem.conv1", _IN_STEM),
    _Rule("bn1", "stem.bn1", _IN_STEM),
)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of timm, of the released ConViT, and of torchvision's ResNet → ours."""
    return _translate(state, _RULES)


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours → timm's: the inverse of `from_timm`."""
    return _translate(state, [rule._replace(theirs=rule.ours, ours=rule.theirs) for rule in _RULES])


def _translate(state: Mapping[str, Tensor], rules: Iterable[_Rule]) -> dict[str, Tensor]:
    translated = {}
    for name, tensor in state.items():
        for rule in rules:
            pattern = "^" + rule.where.format(re.escape(rule.theirs))
            if re.match(pattern, name):
                name, tensor = re.sub(pattern, rf"\g<1>{rule.ours}", name), rule.convert(tensor)
                break
        translated[name] = tensor
    return translated


def load_timm_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a foreign state dict into one of our models; every name and shape must fit."""
    ours, given = model.state_dict(), from_timm(state)
    missing, unknown = sorted(ours.keys() - given.keys()), sorted(given.keys() - ours.keys())
    misshapen = [
        f"{name} ({list(given[name].shape)}, expected {list(ours[name].shape)})"
        for name in sorted(ours.keys() & given.keys())
        if given[name].shape != ours[name].shape
    ]
    if faults := _listed({"missing": missing, "unknown": unknown, "of another shape": misshapen}):
        raise ValueError(
            f"these weights are not for this model: {faults}. Build it with the weights' own classes and "
            "input size (set_input_size comes after loading), and give the state dict, not a checkpoint around it"
        )
    model.load_state_dict(given)
