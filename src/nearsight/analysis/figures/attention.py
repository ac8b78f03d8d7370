"""Maps over the whole grid: ConViT's Figures 3, 7, 15, 16 and 17."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearsight.analysis.figures.drawing import Sheet, draw_map, draw_picture, figure_style, gate_chip, numbers, save
from nearsight.analysis.pictures import Picture, batch_for, fit_picture, model_size
from nearsight.analysis.views import GlobalView
from nearsight.analysis.walk import inspectable, looking, num_attention_layers, walk_batches
from nearsight.functional import convolutional_v_pos, positional_weights
from nearsight.geometry import Grid, head_centers
from nearsight.models import VisionTransformer
from nearsight.nn import SelfAttention

# Inches: a map, the space between maps and before a group of them, a line of text, and its distance from the map.
CELL, STEP, GAP, HEADING, LIFT = 0.8, 0.06, 0.34, 0.26, 0.05
STRENGTHS = (0.5, 2.0)  # α of Figure 3 (c) and (d)
WIDEST = 9  # heads that fit beside each other on a page


@figure_style()
def figure3(
    model: nn.Module, image: tuple[str, np.ndarray], path: str | Path, *, query: tuple[int, int] | None = None
) -> list[Path]:
    """Figure 3: a fresh self-attention layer sees the picture, a convolutional initialisation sees positions alone.

    Sizes (heads, width, patches) are those of `model`, one of our ViTs; no trained weight enters but its patch
    embedding. `image` is a name and uint8 [H, W, 3].
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"Figure 3 needs one of nearsight's ViTs, not a {type(model).__name__}; try convit_tiny")
    picture = fit_picture(*image, model.img_size, model)
    grid_size, num_heads = model.grid_size, model.num_heads
    query = _query(query, grid_size)
    place = query[0] * grid_size[1] + query[1]
    rows: list[tuple[str, Tensor]] = [("(b) self-attention, untrained", _fresh_attention(model, picture)[:, place])]
    for letter, strength in zip("cd", STRENGTHS, strict=True):
        v_pos = convolutional_v_pos(head_centers(num_heads), strength)
        rows.append((f"({letter}) convolutional, α = {strength:g}", positional_weights(v_pos, grid_size)[:, place]))
    side = CELL * len(rows) + HEADING * (len(rows) - 1)
    sheet = Sheet(side + GAP + num_heads * (CELL + STEP), side + HEADING)
    sheet.text(0, HEADING - LIFT, "(a) picture and query")
    draw_picture(sheet.panel(0, HEADING, side, side), picture.pixels, query, grid_size)
    for index, (label, maps) in enumerate(rows):
        top = HEADING + index * (CELL + HEADING)
        sheet.text(side + GAP, top - LIFT, label)
        for head in range(num_heads):
            axes = sheet.panel(side + GAP + head * (CELL + STEP), top, CELL, CELL)
            # Fresh attention is close to uniform: only a linear scale of its own shows the picture in it.
            draw_map(axes, maps[head].reshape(grid_size).numpy(), query, logarithmic=False)
    data = {
        "figure": "ConViT Figure 3",
        "picture": picture.name,
        "grid_size": grid_size,
        "query": query,
        "head_centers": head_centers(num_heads).tolist(),
        "rows": [{"label": label, "maps": numbers(maps)} for label, maps in rows],
    }
    return save(sheet.figure, path, data=data)


def _fresh_attention(model: VisionTransformer, picture: Picture) -> Tensor:
    """Maps [n, N, N] of a new self-attention layer on the model's patch embedding, normalised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = SelfAttention(model.width, model.num_heads)
    with looking(model):
        tokens = model.patch_embed(picture.tensor(model))
        _, weights = layer(nn.functional.layer_norm(tokens, (model.width,)), need_weights=True)
    return weights[0]


@figure_style()
def attention_figure(
    models: Mapping[str, nn.Module],
    pictures: Sequence[tuple[str, np.ndarray]],
    path: str | Path,
    *,
    layers: Sequence[int] | None = None,
    query: tuple[int, int] | None = None,
    stacked: bool | None = None,
    title: str = "ConViT Figure 7",
) -> list[Path]:
    """Figures 7, 16 (several pictures) and 17 (`stacked`): maps of the same query in two or more models.

    One row for each picture and layer, one column for each head; `stacked` puts models below each other instead of
    side by side (by default when they have many heads). Colours are logarithmic; σ(λ) of gated heads is a chip from
    white (content) to red (position). `layers` counts from 1 as the paper does (its 2 and 10 by default, or what comes
    nearest in shorter models).
    """
    shown: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for name, model in models.items():
        for label, image in pictures:
            picture = fit_picture(label, image, model_size(model), model)
            rows, place, grid_size = _rows(model, picture.tensor(model), layers, query, first=2)
            shown[name].append({"rows": rows, "query": place, "pixels": picture.pixels, "grid_size": grid_size})
    heads = {name: max(len(row["maps"]) for part in parts for row in part["rows"]) for name, parts in shown.items()}
    if stacked is None:
        stacked = sum(heads.values()) > WIDEST
    widths = {name: GAP + count * (CELL + STEP) for name, count in heads.items()}
    tall = max(len(part["rows"]) for parts in shown.values() for part in parts) * (CELL + STEP)
    side = min(tall - STEP, 2 * CELL)
    num_bands = len(pictures) * (len(models) if stacked else 1)
    across = max(widths.values()) if stacked else sum(widths.values())
    sheet = Sheet(side + across, num_bands * (tall + (HEADING if stacked else STEP)) + HEADING)
    for number in range(len(pictures)):
        left = side
        for order, (name, parts) in enumerate(shown.items()):
            part = parts[number]
            band = number * len(models) + order if stacked else number
            top = HEADING + band * (tall + (HEADING if stacked else STEP))
            if order == 0 or stacked:
                draw_picture(sheet.panel(0, top, side, side), part["pixels"], part["query"], part["grid_size"])
            if number == 0 or stacked:
                sheet.text(left + GAP, top - LIFT, name)
            _draw_rows(sheet, part, left + GAP, top)
            left += 0 if stacked else widths[name]
    data = {
        "figure": title,
        "colour": "logarithmic, each map from a thousandth of its largest weight",
        "panels": [
            {
                "model": name,
                "picture": pictures[number][0],
                "query": part["query"],
                "layers": [{**row, "maps": numbers(row["maps"])} for row in part["rows"]],
            }
            for name, parts in shown.items()
            for number, part in enumerate(parts)
        ],
    }
    return save(sheet.figure, path, data=data)


def _draw_rows(sheet: Sheet, part: dict[str, Any], left: float, top: float) -> None:
    for index, row in enumerate(part["rows"]):
        for head, weights in enumerate(row["maps"]):
            axes = sheet.panel(left + head * (CELL + STEP), top + index * (CELL + STEP), CELL, CELL)
            draw_map(axes, weights, part["query"])
            if row["gate_values"] is not None:
                gate_chip(axes, row["gate_values"][head])
            if head == 0:
                axes.set_ylabel(f"layer {row['layer']}", fontsize=7)


@figure_style()
def averaged_figure(
    models: Mapping[str, nn.Module],
    pictures: Sequence[tuple[str, np.ndarray]],
    path: str | Path,
    *,
    layers: Sequence[int] | None = None,
    query: tuple[int, int] | None = None,
) -> list[Path]:
    """Figure 15: maps averaged over many pictures (name, uint8 [H, W, 3]), for a model before training and after, or
    any others."""
    panels = []
    for name, model in models.items():
        rows, place, _ = _rows(model, batch_for(model, pictures), layers, query, first=1)
        panels += [{"model": name, "layer": row["layer"], "query": place, "maps": row["maps"]} for row in rows]
    columns = max(len(panel["maps"]) for panel in panels)
    sheet = Sheet(columns * (CELL + STEP), len(panels) * (CELL + HEADING))
    for index, panel in enumerate(panels):
        top = HEADING + index * (CELL + HEADING)
        sheet.text(0, top - LIFT, f"{panel['model']}, layer {panel['layer']}")
        for head, weights in enumerate(panel["maps"]):
            draw_map(sheet.panel(head * (CELL + STEP), top, CELL, CELL), weights, panel["query"])
    data = {
        "figure": "ConViT Figure 15",
        "num_images": len(pictures),
        "panels": [{**panel, "maps": numbers(panel["maps"])} for panel in panels],
    }
    return save(sheet.figure, path, data=data)


def _rows(
    model: nn.Module, images: Tensor, layers: Sequence[int] | None, query: tuple[int, int] | None, *, first: int
) -> tuple[list[dict[str, Any]], tuple[int, int], Grid]:
    """The chosen layers' maps [n, H, W] of one query, averaged over images; the query; and the grid of patches."""
    model = inspectable(model)
    chosen = _layers(layers, num_attention_layers(model), first=first)
    rows: dict[int, dict[str, Any]] = {}
    with looking(model):
        for view in walk_batches(model, images, batch_size=8):
            if not isinstance(view, GlobalView):
                raise ValueError(f"{view.name} attends within windows; use --figure sasa-attention for this model")
            layer, grid_size, place = view.index + 1, view.grid_size, _query(query, view.grid_size)
            if layer in chosen:
                gates = None if view.gate_value is None else numbers(view.gate_value)
                row = rows.setdefault(layer, {"layer": layer, "gate_values": gates, "maps": 0})
                maps = view.patch_weights()[:, :, place[0] * grid_size[1] + place[1]].sum(dim=0)
                row["maps"] = row["maps"] + maps.unflatten(-1, grid_size).numpy() / len(images)
    return list(rows.values()), place, grid_size


def _layers(layers: Sequence[int] | None, depth: int, *, first: int) -> list[int]:
    """Layers counted from 1: what was asked, or `first` and the tenth (the last but two in other depths)."""
    if layers is None:
        return sorted({min(first, depth), max(depth - 2, 1)})
    if wrong := [layer for layer in layers if not 1 <= layer <= depth]:
        raise ValueError(f"there is no layer {wrong[0]}; layers count from 1 to {depth}")
    return list(layers)


def _query(query: tuple[int, int] | None, grid_size: Grid) -> tuple[int, int]:
    """The asked patch (row, col), or one a little off the middle, where pictures have something to show."""
    if query is None:
        return grid_size[0] // 2, max(grid_size[1] // 2 - 1, 0)
    if not (0 <= query[0] < grid_size[0] and 0 <= query[1] < grid_size[1]):
        raise ValueError(
            f"query {query[0]},{query[1]} lies outside the grid of {grid_size[0]}x{grid_size[1]} patches "
            "(row,col, counted from 0)"
        )
    return query
