"""`nearsight inspect`: what is inside a model or a run, as a table or as one of the papers' figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from nearsight.cli.options import Download, Weights
from nearsight.text import typed

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from nearsight.explorer.sources import Source

FigureName = Literal["3", "5", "6", "7", "10", "13", "14", "15", "16", "17", "sasa-logits", "sasa-attention"]
FROM_LOGS = ("5", "6", "10", "13", "14")
USES: dict[str | None, tuple[str, ...]] = {
    None: ("image", "images"),
    "3": ("image", "query"),
    **dict.fromkeys(FROM_LOGS, ()),
    **dict.fromkeys(("7", "16", "17"), ("image", "query", "layers")),
    "15": ("image", "images", "query", "layers"),
    "sasa-logits": ("image", "images"),
    "sasa-attention": ("image", "layers"),
}
"""Which options the table (None) and each figure use."""
OF_ONE = ("3", "sasa-logits", "sasa-attention")
TABLE_SUFFIXES = (".json", ".csv")
_PICTURE_OF_FIGURE_3 = 20
"""Which of the bundled pictures Figure 3 shows of a model by name, counted from 1."""


def inspect(
    *sources: str,
    figure: FigureName | None = None,
    out: Path | None = None,
    image: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative="")] = None,
    query: Annotated[tuple[int, int] | None, Parameter(negative="")] = None,
    layers: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    images: int | None = None,
    weights: Weights = "",
    download: Download = False,
) -> int:
    """Look inside models and runs: a table of every head, or a figure of the papers with its numbers beside it.

    Parameters
    ----------
    sources
        Run folders, model names (`convit_tiny`), or timm's (`timm:deit_tiny_patch16_224`); several where figures
        compare.
    figure
        A figure of ConViT (3, 7, 15, 16, 17 from models; 5, 6, 10, 13, 14 from runs) or of SASA's windows. Without
        it: a table.
    out
        Where to write: .png, .svg or .pdf for a figure (its data goes beside it as .json and .csv), .json or .csv for
        a table.
    image
        Picture files to look at; by default a run's own validation pictures, else bundled photographs of clothing.
    query
        The query patch: row and column, counted from 0.
    layers
        Layers to draw, counted from 1; each figure has its own choice.
    images
        How many pictures to average over (by default 32 in the table, 100 in Figure 15, 8 in sasa-logits).
    """
    from nearsight.explorer.sources import open_source

    if not sources:
        raise ValueError(f"name what to look into: a run folder or a model, such as: {typed('inspect', 'convit_tiny')}")
    if weights and len(sources) > 1:
        raise ValueError("--weights goes with one model; give one source")
    _check_options(figure, {"image": image, "images": images, "query": query, "layers": layers})
    if figure in OF_ONE and len(sources) > 1:
        raise ValueError(f"--figure {figure} is of one model; give one source")
    if figure in ("3", "sasa-attention") and len(image or []) > 1:
        raise ValueError(f"--figure {figure} is of one picture; give one --image")
    _check_out(figure, out)
    opened = [open_source(spec, weights=weights, download=download) for spec in sources]
    if figure is None:
        return _table(opened, out, image or [], images)
    path = Path(f"figure-{figure}.png") if out is None else out
    if figure in FROM_LOGS:
        written = _from_logs(figure, opened, path)
    else:
        written = _from_models(figure, opened, path, image or [], query, layers, images)
    for file in written:
        print(file)
    return 0


def _check_options(figure: str | None, given: dict[str, object]) -> None:
    """Refuse options that the figure or the table does not use."""
    form = "the table" if figure is None else f"--figure {figure}"
    for name, value in given.items():
        if value is not None and name not in USES[figure]:
            used = " and ".join(f"--{option}" for option in USES[figure]) or "none of these options"
            raise ValueError(f"{form} has no use for --{name}; it takes {used}")
    if given["image"] is not None and given["images"] is not None:
        raise ValueError("--images counts pictures of a set, --image names them; give one of the two")
    if isinstance(count := given["images"], int) and count < 1:
        raise ValueError(f"--images is at least 1, not {count}")


def _check_out(figure: str | None, out: Path | None) -> None:
    """Refuse a file that the figure or the table cannot be written to, before the work."""
    from nearsight.analysis.figures.drawing import SUFFIXES

    what, suffixes = ("a table", TABLE_SUFFIXES) if figure is None else ("a figure", SUFFIXES)
    if out is not None and out.suffix.lower() not in suffixes:
        raise ValueError(f"--out: {what} is written as {' or '.join(suffixes)}, not {out.name!r}")


def _from_logs(figure: str, sources: list[Source], path: Path) -> list[Path]:
    from nearsight.analysis.figures import gates_figure, nonlocality_figure
    from nearsight.analysis.figures.training import read_curves
    from nearsight.explorer.sources import RunSource

    for source in sources:
        if not isinstance(source, RunSource):
            raise ValueError(f"Figure {figure} is about training: it needs run folders, and {source.spec} is a model")
    curves = [read_curves(source.spec) for source in sources]
    draw = gates_figure if figure in ("6", "14") else nonlocality_figure
    return draw(curves, path, title=f"ConViT Figure {figure}")


def _from_models(
    figure: str,
    sources: list[Source],
    path: Path,
    files: list[Path],
    query: tuple[int, int] | None,
    layers: list[int] | None,
    num_images: int | None,
) -> list[Path]:
    from nearsight.analysis import figures
    from nearsight.analysis.pictures import batch_for, sample_images
    from nearsight.explorer.sources import RunSource, untrained

    models = {source.name: source.load() for source in sources}
    model = next(iter(models.values()))
    size = sources[0].image_size(model)
    if figure == "15":
        before = {f"{source.name} before": untrained(source) for source in sources}
        after = {f"{name} after": model for name, model in models.items()}
        shown = _shown(sources, files, num_images, 100)
        return figures.averaged_figure({**before, **after}, shown, path, layers=layers, query=query)
    if figure == "sasa-logits":
        return figures.relative_logits_figure(
            model, batch_for(model, _shown(sources, files, num_images, 8), size), path
        )
    if figure == "3" and not files and not isinstance(sources[0], RunSource):
        return figures.figure3(model, sample_images(_PICTURE_OF_FIGURE_3)[-1], path, query=query)
    shown = _shown(sources, files, None, 4 if figure == "16" else 1)
    if figure == "3":
        return figures.figure3(model, shown[0], path, query=query)
    if figure == "sasa-attention":
        return figures.window_attention_figure(model, shown[0], path, layers=layers, size=size)
    return figures.attention_figure(
        models, shown, path,
        layers=layers, query=query, stacked=True if figure == "17" else None, title=f"ConViT Figure {figure}",
    )  # fmt: skip


def _shown(sources: list[Source], files: list[Path], asked: int | None, usual: int) -> list[tuple[str, np.ndarray]]:
    """The named files; else as many pictures of a set as were asked for, or as usual where there are so many."""
    from nearsight.explorer.sources import pictures_of
    from nearsight.images.decode import read_image_file
    from nearsight.images.imageset import BadImage

    if not files:
        pictures = pictures_of(sources)
        print(f"pictures: {pictures.origin}", file=sys.stderr)
        return (pictures.at_most(usual) or pictures.take(1)) if asked is None else pictures.take(asked)
    try:
        return [(file.name, read_image_file(file, str(file))) for file in files]
    except BadImage as error:
        raise ValueError(str(error)) from error


def _table(sources: list[Source], out: Path | None, files: list[Path], num_images: int | None) -> int:
    from rich.console import Console

    from nearsight.analysis import head_profiles
    from nearsight.analysis.pictures import batch_for

    rows = []
    for source in sources:
        model = source.load()
        shown = _shown([source], files, num_images, 32)
        profiles = head_profiles(model, batch_for(model, shown, source.image_size(model)))
        own = [{"source": source.name, **profile.as_dict()} for profile in profiles]
        rows += own
        if out is None:
            Console().print(_drawn_table(source.name, own))
    if out is not None:
        _write_rows(rows, out)
        print(out)
    return 0


def _drawn_table(name: str, rows: list[dict]) -> Table:
    from rich.table import Table

    caption = "In patches, (row, col) from the query. Δ and span: from v_pos (* no peak); seen: measured on pictures."
    table = Table(title=name, caption=caption, padding=(0, 1, 0, 0), box=None)
    for heading in ("layer", "kind", "head", "σ(λ)", "D_loc", "entropy", "Δ", "span", "seen Δ", "seen span", "conv"):
        table.add_column(heading, justify="left" if heading == "kind" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["layer"] + 1), row["kind"], str(row["head"] + 1), _number(row["gate_value"]),
            _number(row["nonlocality"]), _number(row["entropy"]), _pair(row["center"]) + "*" * bool(row["degenerate"]),
            _number(row["span"]), _pair(row["measured_center"]), _number(row["measured_span"]),
            _number(row["convolution_share"]),
        )  # fmt: skip
    return table


def _write_rows(rows: list[dict], out: Path) -> None:
    import json

    from nearsight.analysis.figures.drawing import write_csv

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".json":
        out.write_text(json.dumps(rows, indent=1) + "\n")
    else:
        write_csv(out, rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _pair(value: tuple[float, float] | None) -> str:
    return "–" if value is None else " ".join(f"{round(part, 1) + 0.0:+.1f}" for part in value)
