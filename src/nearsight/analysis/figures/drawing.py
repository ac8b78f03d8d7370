"""What all figures share: one look, the red box of the query, maps on a logarithmic scale, and numbers beside
pictures."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

SUFFIXES = (".png", ".svg", ".pdf")
INK, PALE, RED = "#1b1f24", "#8a929c", "#d7263d"
MAP_COLORS = "viridis"
GATE_COLORS = LinearSegmentedColormap.from_list("gate", ["#ffffff", RED])  # content → position, as in Fig. 7
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "nearsight",  # the same picture gives the same file
    "pdf.fonttype": 42,
}


def figure_style():
    """A context in which figures are made: nothing of matplotlib's global settings is changed for others."""
    return matplotlib.rc_context(STYLE)


def save(
    figure: Figure, path: str | Path, *, data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()
) -> list[Path]:
    """Write the picture to `path`, `data` beside it as .json and `rows`, if any, as .csv; all their paths."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure is saved as {', '.join(SUFFIXES)}, not {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with figure_style():
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=200, facecolor="white", bbox_inches="tight", metadata=metadata[path.suffix.lower()])
    written = [path, path.with_suffix(".json")]
    written[1].write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    if rows:
        written.append(path.with_suffix(".csv"))
        write_csv(written[2], rows)
    return written


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table with the names of the first row as its heading."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def numbers(values: Any) -> Any:
    """Arrays and tensors as nested lists of numbers with six significant digits, for JSON."""
    return _rounded(np.asarray(values, dtype=np.float64).tolist())


def _rounded(value: Any) -> Any:
    return [_rounded(item) for item in value] if isinstance(value, list) else float(f"{value:.6g}")


class Sheet:
    """A figure on which panels are placed in inches from the upper left corner, so that cells are square and gaps
    equal."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height))

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        style = {"va": "bottom", "fontsize": 8, **style}
        self.figure.text(left / self.width, 1 - top / self.height, text, **style)


def draw_map(axes: Axes, weights: np.ndarray, query: tuple[int, int], *, logarithmic: bool = True) -> None:
    """One map [rows, cols] of weights. Each map has its own scale, from its smallest weight (on the logarithmic scale
    no less than a thousandth of the largest) to its largest: the figures are about shape."""
    low, peak = float(weights.min()), float(weights.max())
    if logarithmic:
        low = max(low, peak * 1e-3)
    if low >= peak:
        low = peak * 0.999
    norm = LogNorm(low, peak, clip=True) if logarithmic else Normalize(low, peak)
    axes.imshow(weights, cmap=MAP_COLORS, norm=norm, interpolation="nearest")
    bare(axes)
    box(axes, query[0], query[1])


def draw_picture(axes: Axes, pixels: np.ndarray, query: tuple[int, int], grid_size: tuple[int, int]) -> None:
    """The picture with its query patch (row, col) boxed."""
    axes.imshow(pixels, interpolation="bilinear")
    bare(axes)
    height, width = pixels.shape[0] / grid_size[0], pixels.shape[1] / grid_size[1]
    box(axes, query[0] * height, query[1] * width, height, width, linewidth=1.4)


def box(
    axes: Axes, top: float, left: float, height: float = 1.0, width: float = 1.0, *, linewidth: float = 0.9
) -> None:
    """A red frame around pixels, which are drawn around their whole numbers."""
    corner = (left - 0.5, top - 0.5)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=RED, linewidth=linewidth))


def gate_chip(axes: Axes, gate_value: float) -> None:
    """σ(λ) in the map's corner, white for content, red for position (Fig. 7)."""
    axes.text(
        0.97, 0.96, f"{gate_value:.2f}", transform=axes.transAxes, ha="right", va="top", fontsize=5.5,
        color=INK if gate_value < 0.6 else "white",
        bbox={"boxstyle": "round,pad=0.25", "facecolor": GATE_COLORS(gate_value), "edgecolor": "white", "linewidth":
        0.4},
    )  # fmt: skip


def bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def layer_colors(count: int) -> Sequence[Any]:
    """First layer dark, last layer bright."""
    return [matplotlib.colormaps["plasma"](0.05 + 0.85 * index / max(count - 1, 1)) for index in range(count)]


def head_colors(count: int) -> Sequence[Any]:
    return [matplotlib.colormaps["turbo"](0.08 + 0.84 * (index + 0.5) / count) for index in range(count)]
