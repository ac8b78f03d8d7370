"""``nearsight compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from nearsight.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from nearsight.reports.compare import Comparison


def compare(
    runs: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    measure: Annotated[str, Parameter(show_default=False)] = "",
    out: Path | None = None,
    json: Json = False,
) -> int:
    """Compare finished runs: those that differ only in their seed are one setting, with mean ± sd and Welch's p.

    Parameters
    ----------
    runs
        Folders of finished runs.
    measure
        What to compare, such as 'test top1'; by default the first test value, or what selected the weights.
    out
        Write a plot to this .png file.
    """
    import dataclasses
    import json as json_format
    import sys

    from nearsight.reports.compare import compare_runs, comparison_plot

    if out is not None and out.suffix != ".png":
        raise ValueError(f"--out writes a .png file, not {out.name!r}")
    comparison = compare_runs(runs, measure)
    if json:
        print(json_format.dumps(dataclasses.asdict(comparison)))
    else:
        _print_comparison(comparison)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(comparison_plot(comparison))
        print(f"plot: {out}", file=sys.stderr if json else sys.stdout)
    return 0


def _print_comparison(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nearsight.reports.compare import describe_setting
    from nearsight.reports.words import decimals

    digits = decimals(comparison.quantity) + 1  # differences are finer than values
    table = Table("setting", "n", "seeds", "mean ± sd", "p against the first", title=comparison.title)
    for setting, p in zip(comparison.settings, comparison.p_values, strict=True):
        spread = f" ± {setting.deviation:.{digits}f}" if setting.deviation is not None else " (n = 1)"
        seeds = ", ".join(str(seed) for seed in setting.seeds)
        label, shown = escape(describe_setting(setting)), "" if p is None else f"{p:.3g}"
        table.add_row(label, str(len(setting.values)), seeds, f"{setting.mean:.{digits}f}{spread}", shown)
    console = Console()
    console.print(table)
    if any(len(setting.differs) > len(setting.shown) for setting in comparison.settings):
        console.print(_all_differences(comparison))
    for note in comparison.notes:
        print(note)


def _all_differences(comparison: Comparison) -> Table:
    """Every differing field, where labels had room for a few."""
    from rich.markup import escape
    from rich.table import Table

    from nearsight.text import value_words

    table = Table("field", *(f"setting {number + 1}" for number in range(len(comparison.settings))))
    for name in comparison.settings[0].differs:
        values = [setting.differs[name] for setting in comparison.settings]
        table.add_row(name, *("" if value is None else escape(value_words(value)) for value in values))
    return table
