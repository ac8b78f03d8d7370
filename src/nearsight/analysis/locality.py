"""How far each layer looks (ConViT Eq. 8), how it is gated and how sharp it is, on true activations.

Cheap enough for every evaluation of a training run: one forward pass, one layer's maps at a time, a few images at a
time. Class, distillation and register tokens have no place on the grid: their rows and columns are left out and the
remaining rows are renormalised, so that blocks with and without them can be compared.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nearsight.analysis import measures
from nearsight.analysis.timm_kinds import is_timm_vit
from nearsight.analysis.views import GlobalView, Kind, View, patch_map
from nearsight.analysis.walk import global_view, inspectable, looking, walk_batches
from nearsight.functional import nonlocality
from nearsight.models import VisionTransformer
from nearsight.models.model import grid_of

Protocol = Literal["activations", "released_code"]


@dataclass(frozen=True)
class LayerSummary:
    """One attention layer, averaged over images; tuples have one number for each head."""

    index: int
    name: str
    kind: Kind
    nonlocality: tuple[float, ...]
    entropy: tuple[float, ...]
    gate_values: tuple[float, ...] | None

    @property
    def mean_nonlocality(self) -> float:
        """D_loc of the layer: the average over its heads."""
        return sum(self.nonlocality) / len(self.nonlocality)


def layer_summaries(model: nn.Module, images: Tensor, *, batch_size: int = 16) -> list[LayerSummary]:
    """A summary of every attention layer on `images` [B, C, H, W] (normalised as the model expects)."""
    model = inspectable(model)
    labels: dict[int, tuple[str, Kind, tuple[float, ...] | None]] = {}
    totals: dict[int, Tensor] = {}  # [2, n]: nonlocality and entropy, summed over images
    with looking(model):
        for view in walk_batches(model, images, batch_size):
            gates = None if view.gate_value is None else _numbers(view.gate_value)
            labels[view.index] = (view.name, view.kind, gates)
            both = torch.stack(nonlocality_and_entropy(view, patch_map(view))).sum(dim=1)
            totals[view.index] = both + totals.get(view.index, 0)
    summaries = []
    for index, (name, kind, gates) in labels.items():
        far, spread = totals[index] / len(images)
        summaries.append(LayerSummary(index, name, kind, _numbers(far), _numbers(spread), gates))
    return summaries


def attention_record(model: nn.Module, images: Tensor) -> dict[str, list]:
    """What a run logs of its model at each evaluation, on a few of its images.

    ``nonlocality`` (ConViT's Figure 5) has one number a layer, in patches; ``gates`` (its Figure 6), σ(λ), one list of
    heads for each gated layer.
    """
    summaries = layer_summaries(model, images)
    record: dict[str, list] = {"nonlocality": [round(summary.mean_nonlocality, 5) for summary in summaries]}
    gates = [[round(value, 5) for value in s.gate_values] for s in summaries if s.gate_values is not None]
    return {**record, "gates": gates} if gates else record


def nonlocality_by_layer(
    model: nn.Module, images: Tensor, *, protocol: Protocol = "activations", batch_size: int = 16
) -> list[float]:
    """D_loc of every layer (Eq. 8, averaged over heads and images), in patches.

    "activations" measures what the layers really do. "released_code" repeats how the ConViT authors' code logged it:
    every layer is fed the raw patch embedding (no position, no norm, no earlier blocks, no class token). Their curves
    are of that kind.
    """
    if protocol == "activations":
        return [summary.mean_nonlocality for summary in layer_summaries(model, images, batch_size=batch_size)]
    if protocol == "released_code":
        return _released_code_nonlocality(model, images, batch_size)
    raise ValueError(f"protocol must be 'activations' or 'released_code', not {protocol!r}")


def nonlocality_and_entropy(view: View, weights: Tensor) -> tuple[Tensor, Tensor]:
    """[B, n] each, of the map that `view` uses between patches or inside windows."""
    if isinstance(view, GlobalView):
        return nonlocality(weights, view.grid_size), measures.entropy(weights)
    return measures.window_nonlocality(weights, view.offsets()), measures.window_entropy(weights)


def _released_code_nonlocality(model: nn.Module, images: Tensor, batch_size: int) -> list[float]:
    model = inspectable(model)
    if not isinstance(model, VisionTransformer) and not is_timm_vit(model):
        raise ValueError(
            f"protocol='released_code' feeds patch embeddings to every block, and a {type(model).__name__} has none; "
            "use protocol='activations'"
        )
    patch_size = model.patch_size if isinstance(model, VisionTransformer) else model.patch_embed.patch_size[0]
    grid_size = grid_of((images.shape[2], images.shape[3]), patch_size)
    totals = [0.0] * len(model.blocks)
    with looking(model):
        for batch in images.split(batch_size):
            embedded = model.patch_embed(batch).reshape(len(batch), grid_size[0] * grid_size[1], -1)
            for index, block in enumerate(model.blocks):
                view = global_view(block.attn, embedded, grid_size, 0, index)  # type: ignore[arg-type]
                totals[index] += nonlocality(view.weights(), grid_size).mean(dim=1).sum().item()
    return [total / len(images) for total in totals]


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.detach().float().tolist())
