"""Attention maps themselves: of chosen layers for a batch, or averaged over a set of images."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from nearsight.analysis.views import Part, View, patch_map
from nearsight.analysis.walk import inspectable, looking, num_attention_layers, walk_batches


def attention_maps(
    model: nn.Module, images: Tensor, blocks: Sequence[int] | None = None, *, part: Part = "mixed"
) -> dict[int, Tensor]:
    """Maps of chosen layers (all by default; negative counts from the end): {layer: weights}.

    Over a grid [B, n, N, N] between patches, prefix tokens left out and rows renormalised; over windows [B, I, J, n,
    k, k]. `part`: what the layer uses ("mixed"), or its content or positional half alone. All asked maps are held at
    once: for many images use `mean_attention_maps`.
    """
    maps: dict[int, Tensor] = {}
    for view in _chosen_views(model, images, blocks, batch_size=len(images)):
        maps[view.index] = patch_map(view, part)
    return maps


def mean_attention_maps(
    model: nn.Module,
    images: Tensor,
    blocks: Sequence[int] | None = None,
    *,
    part: Part = "mixed",
    batch_size: int = 8,
) -> dict[int, Tensor]:
    """As `attention_maps`, averaged over the images while they stream by: {layer: [n, N, N] or [I, J, n, k, k]}."""
    totals: dict[int, Tensor] = {}
    for view in _chosen_views(model, images, blocks, batch_size=batch_size):
        total = patch_map(view, part).sum(dim=0)
        totals[view.index] = totals[view.index] + total if view.index in totals else total
    return {index: total / len(images) for index, total in totals.items()}


def _chosen_views(model: nn.Module, images: Tensor, blocks: Sequence[int] | None, *, batch_size: int) -> Iterator[View]:
    model = inspectable(model)
    depth = num_attention_layers(model)
    if wrong := [block for block in blocks or () if not -depth <= block < depth]:
        raise ValueError(f"there is no layer {wrong[0]}; this model has {depth}, counted from 0")
    wanted = None if blocks is None else {block % depth for block in blocks}
    with looking(model):
        for view in walk_batches(model, images, batch_size):
            if wanted is None or view.index in wanted:
                yield view
