"""`nearsight convert`: a run's convolutions as attention, or its attention as convolutions, in a new run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from nearsight.text import typed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nearsight.runs.folder import RunFolder


def convert(
    run: Path,
    *,
    to: Literal["attention", "convolution"],
    stages: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    kind: Literal["gpsa", "local"] | None = None,
    gate: float | None = None,
    locality_strength: float | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    border: Literal["zeros", "mask"] | None = None,
    images: int = 8,
    out: Path | None = None,
) -> int:
    """Turn a trained network's convolutions into attention that computes the same, or back, in a new run.

    Parameters
    ----------
    run
        A run folder; its selected weights are converted.
    to
        attention: convolutions of the stages become attention. convolution: attention that this verb made becomes the
        convolution nearest to it, and how much of each layer that is, is printed.
    stages
        Numbers of stages, counted from 1, or beginnings of layers' names; by default all numbered stages.
    kind
        gpsa: attention over the whole grid with a gate for position (the default); local: within a window.
    gate
        Gate λ at the start, for gpsa (14): 1 − σ(λ) of the attention is content's. A smaller one learns sooner.
    locality_strength
        How strongly heads start on their pixel (14): another one beside it has the weight e^−α.
    head_dim
        Channels of queries and keys (32).
    window
        Side of the window, for local; by default that of the kernel.
    border
        zeros: zero padding stays what it is (the default); mask: no head looks outside, another function at the edge.
    images
        How many of the run's validation pictures, else of the bundled ones, the result is compared on.
    out
        Folder of the new run; by default beside the old one.
    """
    from nearsight.runs.folder import RunFolder, free_run_path

    given = {
        "kind": kind, "gate": gate, "locality_strength": locality_strength, "head_dim": head_dim, "window": window,
        "border": border, "stages": None if stages is None else [int(one) if one.isdigit() else one for one in stages],
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    if images < 1:
        raise ValueError(f"--images is at least 1, not {images}")
    origin = RunFolder(run)
    path = out or free_run_path(origin.path.resolve().parent, f"{origin.name}-{to}")
    made = _to_attention(origin, path, options, images) if to == "attention" else _back(origin, path, options, images)
    print(f"run: {made.path}")
    print(f"train it: {typed('resume', made.path)}; it starts from these weights, with the settings of {origin.name}")
    return 0


def _to_attention(origin: RunFolder, path: Path, options: dict[str, Any], count: int) -> RunFolder:
    from nearsight.convert import to_attention
    from nearsight.recipes.foreign import CONVERTED
    from nearsight.weights.conversion import converted_recipe, selected_model, write_converted_run

    recipe = origin.recipe()
    if CONVERTED in recipe.model_options:
        raise ValueError(f"{origin.path} is converted already; convert the run that it was made from")
    cnn = selected_model(origin)
    pictures = _pictures(origin, cnn, count)
    model, report = to_attention(cnn, images=pictures, **options)
    print(report)
    # Without --stages the config names what was taken, which a later version might take otherwise.
    stated = {"kind": "gpsa", **options, "stages": options.get("stages", [layer.name for layer in report.converted])}
    made = write_converted_run(path, origin, converted_recipe(recipe, stated), model, report.as_dict())
    _compare(cnn, made, pictures)
    return made


def _back(origin: RunFolder, path: Path, options: dict[str, Any], count: int) -> RunFolder:
    from nearsight.convert import to_convolution
    from nearsight.weights.conversion import converted_recipe, selected_model, write_converted_run

    if options:
        raise ValueError(f"--{next(iter(options)).replace('_', '-')} is for --to attention")
    attention = selected_model(origin)
    pictures = _pictures(origin, attention, count)
    model, report = to_convolution(attention, pictures)
    print(report)
    recipe = converted_recipe(origin.recipe(), None)
    made = write_converted_run(path, origin, recipe, model, report.as_dict())
    _compare(attention, made, pictures)
    return made


def _pictures(origin: RunFolder, model: nn.Module, count: int) -> Tensor:
    """Pictures as the network receives them."""
    from nearsight.analysis.pictures import batch_for
    from nearsight.explorer.sources import RunSource, pictures_of

    source = RunSource(origin.path)
    pictures = pictures_of([source])
    shown = pictures.at_most(count) or pictures.take(1)
    print(f"compared on {len(shown)} pictures: {pictures.origin}")
    return batch_for(model, shown, source.image_size(model))


def _compare(before: nn.Module, made: RunFolder, pictures: Tensor) -> None:
    """The new run, read from its folder, beside the network that it was made from."""
    import torch

    from nearsight.weights.conversion import selected_model

    with torch.no_grad():
        old, new = before(pictures), selected_model(made)(pictures)
    if isinstance(old, torch.Tensor) and old.ndim == 2:
        same, far = int((old.argmax(1) == new.argmax(1)).sum()), (old - new).abs().max().item()
        print(f"the new run: the same class for {same} of {len(old)} pictures, outputs within {far:.1e}")
