"""Folders and files of weights: for the hub, for timm, or alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.export.card import model_card
from nearsight.export.checking import Source, compare, described, example, other_examples
from nearsight.models.saving import CARD, PREFIX, config_of, save_folder
from nearsight.recipes.foreign import PREFIX as TIMM
from nearsight.runs.folder import RunFolder
from nearsight.tasks import task_kind
from nearsight.weights import load_weights, read_weights, to_timm


def write_hub(source: Source, path: Path) -> Sequence[str]:
    """model.safetensors, config.json, README.md: what `nearsight.load`, predict and timm open, and a hub shows."""
    model = source.model
    save_folder(model.network, path, _config(source))
    if RunFolder(source.path).has_config:
        card = model_card(path.name, RunFolder(source.path), source.task, list(model.classes))
    else:
        card = (source.path / CARD).read_text(encoding="utf-8") if (source.path / CARD).is_file() else ""
    (path / CARD).write_text(card, encoding="utf-8")
    again = task_kind(source.task).load(path, device="cpu").portable()
    images = [example(model), *other_examples(model, any_size=False)]
    return (compare(source, _runner(again.forward), images), f"{CARD} has two TODO: the data's origin, and a licence")


def write_timm(source: Source, path: Path) -> Sequence[str]:
    """A folder that timm opens: under its own name and tensors where it has the same network, else under ours."""
    from nearsight.timm import TWINS

    if source.task != "classification":
        raise ValueError("timm has classifiers only; take --to onnx or hub for a detector")
    model, config = source.model, _config(source)
    name, arguments = network_of(model.network)
    twin = TWINS.get(name) if arguments.keys() <= {"num_classes", "img_size", "drop_path_rate"} else None
    if name.startswith(TIMM) or twin is None:
        save_folder(model.network, path, config)
        needs = "" if name.startswith(TIMM) else " after import nearsight.timm"
    else:
        shown = {**model.preprocessing, "first_conv": None}
        given = {key: arguments[key] for key in ("img_size",) if key in arguments and "resnet" not in twin}
        tensors = to_timm(model.network.state_dict())
        save_folder(_Tensors(tensors), path, {**config, **config_of(twin, given, _without_none(shown))})
        needs = ""
    return (_checked_by_timm(source, path), f"timm.create_model('local-dir:{path.name}', pretrained=True){needs}")


def write_weights(source: Source, path: Path) -> Sequence[str]:
    """The weights under our names, with what is known of the model as the file's metadata."""
    from safetensors.torch import save

    network = source.model.network
    tensors = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    path.write_bytes(save(tensors, metadata={"format": "pt", **described(source)}))
    own = [parameter.clone() for parameter in network.parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    load_weights(network, read_weights(path), str(path))
    if not all(torch.equal(one, other) for one, other in zip(own, network.parameters(), strict=True)):
        raise ValueError("what was written and read again is not the same")
    return ("read again: the same to the bit",)


def network_of(network: nn.Module) -> tuple[str, dict[str, Any]]:
    """The name and arguments with which a network was made."""
    made: Any = getattr(network, "made_as", None)
    if made is None:
        raise ValueError("it is not known by what name and arguments the model was made")
    return made


def _config(source: Source) -> dict[str, Any]:
    model = source.model
    name, arguments = network_of(model.network)
    architecture = name.removeprefix(TIMM) if name.startswith(TIMM) else PREFIX + name
    arguments = {key: value for key, value in arguments.items() if key != "drop_path_rate"}
    config = config_of(
        architecture, {**arguments, "num_classes": len(model.classes)}, _without_none(model.preprocessing)
    )
    return {**config, "task": source.task, "label_names": list(model.classes)}


def _without_none(shown: Any) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if value is not None}


class _Tensors(nn.Module):
    """Tensors under any names, to be saved."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.tensors = tensors

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        return self.tensors


def _checked_by_timm(source: Source, path: Path) -> str:
    import timm

    import nearsight.timm  # noqa: F401 - registers ours

    theirs = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    return compare(
        source,
        _runner(theirs),
        [example(source.model)[:, :, : source.model.image_size[0], : source.model.image_size[1]]],
    )


def _runner(forward: Any) -> Any:
    def run(images: Tensor) -> Sequence[Tensor]:
        out = forward(images)
        return (out,) if isinstance(out, Tensor) else out

    return run
