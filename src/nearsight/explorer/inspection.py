"""Everything the page can ask about one picture in one model, computed once and kept; a click then only reads a row.

Maps are kept as float16 arrays with the query first, so that one query's maps of a layer lie next to each other in
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from nearsight.analysis import looking, walk
from nearsight.analysis.heads import profiles_of_view
from nearsight.analysis.pictures import Picture
from nearsight.analysis.views import GlobalView, LocalView, Part, View

PARTS: tuple[Part, ...] = ("mixed", "content", "position")


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """One attention layer: what it is, its heads in numbers, and its maps [queries, heads, keys] for each part it
    has."""

    name: str
    kind: str
    query_grid: tuple[int, int]
    key_grid: tuple[int, int]
    kernel_size: int | None  # None: every key of the grid
    stride: int
    heads: list[dict[str, Any]]
    maps: dict[Part, np.ndarray]

    def describe(self) -> dict[str, Any]:
        described = {name: value for name, value in vars(self).items() if name != "maps"}
        return {**described, "parts": list(self.maps)}


@dataclass(frozen=True, eq=False)
class Inspection:
    """One picture in one model."""

    picture: Picture
    layers: list[LayerMaps]
    predictions: list[dict[str, Any]]

    @property
    def num_bytes(self) -> int:
        return self.picture.pixels.nbytes + sum(array.nbytes for layer in self.layers for array in layer.maps.values())

    def describe(self) -> dict[str, Any]:
        """What the page needs to draw, but for the maps themselves."""
        height, width = self.picture.pixels.shape[:2]
        return {
            "picture": {"name": self.picture.name, "height": height, "width": width},
            "parts": list(PARTS),
            "layers": [layer.describe() for layer in self.layers],
            "predictions": self.predictions,
        }

    def maps_at(self, row: float, col: float) -> bytes:
        """All maps of the query that lies at (row, col), shares of the picture's height and width in [0, 1).

        float16, little-endian: for each part in order, for each layer that has it, heads × keys.
        """
        return b"".join(
            layer.maps[part][query_index(layer.query_grid, row, col)].tobytes()
            for part in PARTS
            for layer in self.layers
            if part in layer.maps
        )


def query_index(grid: tuple[int, int], row: float, col: float) -> int:
    return min(int(row * grid[0]), grid[0] - 1) * grid[1] + min(int(col * grid[1]), grid[1] - 1)


def inspect_picture(
    model: nn.Module, picture: Picture, predictions: Callable[[Any, tuple[int, int]], list[dict[str, Any]]]
) -> Inspection:
    """Run one picture through a model and keep every map; `predictions` says what the outputs mean."""
    images = picture.tensor(model)
    with looking(model):
        layers = [_layer(view) for view in walk(model, images)]
        outputs = model(images)
    return Inspection(picture, layers, predictions(outputs, (images.shape[2], images.shape[3])))


def _layer(view: View) -> LayerMaps:
    heads = [
        {name: value for name, value in profile.as_dict().items() if name not in ("layer", "layer_name", "kind")}
        for profile in profiles_of_view(view)
    ]
    if isinstance(view, GlobalView):
        parts: tuple[Part, ...] = PARTS if view.v_pos is not None else ("mixed",)
        maps = {part: _kept(view.patch_weights(part)[0].transpose(0, 1)) for part in parts}
        return LayerMaps(view.name, view.kind, view.grid_size, view.grid_size, None, 1, heads, maps)
    maps = {part: _kept(view.inside_weights(part)[0].flatten(3).flatten(0, 1)) for part in _local_parts(view)}
    query_grid = (view.query.shape[1], view.query.shape[2])
    return LayerMaps(view.name, view.kind, query_grid, view.grid_size, view.kernel_size, view.stride, heads, maps)


def _local_parts(view: LocalView) -> tuple[Part, ...]:
    both = view.key is not None and view.row_embedding is not None
    return PARTS if both else ("mixed",)


def _kept(weights: Tensor) -> np.ndarray:
    return weights.contiguous().numpy().astype("<f2")
