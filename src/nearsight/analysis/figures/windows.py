"""SASA's local windows: the learned relative logits, and attention over a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from nearsight.analysis.figures.drawing import bare, box, draw_map, draw_picture, figure_style, numbers, save
from nearsight.analysis.pictures import DEFAULT_SIZE, fit_picture
from nearsight.analysis.views import LocalView
from nearsight.analysis.walk import inspectable, looking, walk
from nearsight.functional import relative_logits


@figure_style()
def relative_logits_figure(model: nn.Module, images: Tensor, path: str | Path) -> list[Path]:
    """q·r of every layer and head, averaged over queries and images [B, 3, H, W]: what position alone adds to the
    logits."""
    rows = []
    for view in _local_views(model, images):
        if view.row_embedding is None or view.col_embedding is None:
            raise ValueError(f"{view.name} has no relative positions; this figure is about them")
        logits = relative_logits(view.query.float(), view.row_embedding.float(), view.col_embedding.float())
        rows.append((view.name, logits.mean(dim=(0, 1, 2)).numpy()))
    columns = max(len(maps) for _, maps in rows)
    figure = Figure(figsize=(0.8 * columns + 1.4, 0.86 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    reach = max(float(np.abs(maps).max()) for _, maps in rows) or 1.0
    for line, (name, maps) in zip(panels, rows, strict=True):
        for head, axes in enumerate(line):
            bare(axes)
            if head < len(maps):
                drawn = axes.imshow(maps[head], cmap="RdBu_r", norm=TwoSlopeNorm(0, -reach, reach))
                middle = (maps.shape[-1] - 1) // 2
                box(axes, middle, middle)
        line[0].set_ylabel(name.replace(", ", "\n"), fontsize=6.5)
    for head, axes in enumerate(panels[0]):
        axes.set_title(f"head {head + 1}")
    figure.colorbar(drawn, ax=panels, label="mean qᵀr", shrink=0.6, pad=0.01)
    data = {"figure": "SASA relative logits", "layers": [{"name": name, "maps": numbers(maps)} for name, maps in rows]}
    table = [
        {"layer": name, "head": head + 1, "row": row, "col": col, "logit": float(value)}
        for name, maps in rows
        for head, window in enumerate(maps)
        for (row, col), value in np.ndenumerate(window)
    ]
    return save(figure, path, data=data, rows=table)


@figure_style()
def window_attention_figure(
    model: nn.Module,
    image: tuple[str, np.ndarray],
    path: str | Path,
    *,
    point: tuple[float, float] = (0.45, 0.45),
    layers: Sequence[int] | None = None,
    size: tuple[int, int] = DEFAULT_SIZE,
) -> list[Path]:
    """Where every local layer looks from one point of the picture, (row, col) as shares of its height and width.

    Each map is drawn on its layer's own grid: the window is 7×7 cells everywhere, but a cell of stage 4 covers 32
    pixels and one of stage 1 covers 4. `layers` counts from 1; the first layer of each resolution by default.
    """
    if not all(0 <= share < 1 for share in point):
        raise ValueError(f"the point is given as shares (row, col) of the picture, from 0 to below 1, not {point}")
    picture = fit_picture(*image, size, model)
    rows, seen = [], set()
    for view in _local_views(model, picture.tensor(model)):
        wanted = view.grid_size not in seen if layers is None else view.index + 1 in layers
        seen.add(view.grid_size)
        if wanted:
            rows.append((view, *_on_grid(view, point)))
    if not rows:
        raise ValueError(f"none of the layers {list(layers or [])} exists; layers count from 1 to {view.index + 1}")
    columns = max(view.num_heads for view, *_ in rows)
    figure = Figure(figsize=(0.86 * (columns + 1), 0.95 * len(rows)))
    panels = figure.subplots(len(rows), columns + 1, squeeze=False)
    for line, (view, maps, query) in zip(panels, rows, strict=True):
        height, width = view.grid_size
        draw_picture(line[0], picture.pixels, query, view.grid_size)
        line[0].set_ylabel(view.name.replace(", ", "\n"), fontsize=6.5)
        for axes, weights in zip(line[1:], maps, strict=False):
            axes.imshow(picture.pixels, extent=(-0.5, width - 0.5, height - 0.5, -0.5), alpha=0.25)
            draw_map(axes, np.ma.masked_equal(weights, 0), query)
    figure.subplots_adjust(wspace=0.06, hspace=0.12)
    data = {
        "figure": "SASA attention over a picture",
        "picture": picture.name,
        "layers": [
            {"name": view.name, "grid_size": view.grid_size, "query": query, "maps": numbers(maps)}
            for view, maps, query in rows
        ],
    }
    return save(figure, path, data=data)


def _on_grid(view: LocalView, point: tuple[float, float]) -> tuple[np.ndarray, tuple[int, int]]:
    """One query's windows pasted into the layer's grid, [n, H, W] with zeros elsewhere, and the query's (row, col)."""
    height, width = view.grid_size
    queries = view.query.shape[1:3]
    at = [int(share * count) for share, count in zip(point, queries, strict=True)]
    windows = view.inside_weights()[0, at[0], at[1]].numpy()  # [n, k, k]
    row, col = at[0] * view.stride, at[1] * view.stride
    before = (view.kernel_size - 1) // 2
    padded = np.zeros((view.num_heads, height + view.kernel_size, width + view.kernel_size), dtype=windows.dtype)
    padded[:, row : row + view.kernel_size, col : col + view.kernel_size] = windows
    return padded[:, before : before + height, before : before + width], (row, col)


def _local_views(model: nn.Module, images: Tensor) -> Iterator[LocalView]:
    model = inspectable(model)
    with looking(model):
        for view in walk(model, images):
            if not isinstance(view, LocalView):
                raise ValueError("this figure is about SASA's windows; give it a sasa_resnet model")
            yield view
