"""`nearsight bench layers` and `nearsight bench models`: options and tables; `nearsight.bench` measures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    import torch

Repeats = Annotated[int, Parameter(help="Rounds whose median is shown.")]
Device = Annotated[Literal["auto", "cuda", "cpu"], Parameter(help="Where to measure.")]
Out = Annotated[Path | None, Parameter(help="Folder for the table as .md and .json, named after the hardware.")]


def layers(
    *,
    batch: int | None = None,
    only: str = "",
    repeats: Repeats = 10,
    explain: bool = False,
    device: Device = "auto",
    out: Out = None,
) -> int:
    """Time 7×7 local attention beside the 3×3 convolution it replaces, unfold and FlexAttention, at four stages.

    Parameters
    ----------
    batch
        Images in a batch; 128 on a GPU, 4 on a CPU.
    only
        Comma-separated rows to measure: conv, projection, attention, layer, unfold, flex; all by default.
    explain
        Say which backend runs at each stage (and GPSA's on each grid, and a linear layer's), why the others do not,
        and measure nothing.
    """
    from nearsight.bench import layers as bench

    if explain and out is not None:
        raise ValueError(
            f"--out {out}: --explain measures nothing, so there is nothing to write; leave one of them out"
        )
    place = _prepare(device, batch, repeats, out)
    peers = _words("--only", only, bench.PEERS) or bench.PEERS
    if peers == ("flex",) and place.type != "cuda":
        raise ValueError("--only flex: FlexAttention is measured on a GPU only, and there is none")
    size = bench.default_batch(place) if batch is None else batch
    if explain:
        print(bench.explain(size, place))
        return 0
    columns = bench.columns(place)
    rows = _print_rows(bench.measure_stages(size, place, peers, repeats), columns, place)
    origin = {"batch": str(size), "type": str(bench.number_type(place)).removeprefix("torch.")}
    _print_origin("layers", rows, columns, place, origin, out)
    return 0


def models(
    *,
    batch: int | None = None,
    only: str = "",
    modes: str = "eager,compiled",
    train: bool = True,
    repeats: Repeats = 5,
    device: Device = "auto",
    out: Out = None,
) -> int:
    """Time ConViT beside timm's and two plain ViTs, and the attention ResNet-50 beside the convolutional one.

    Parameters
    ----------
    batch
        Images in a batch; 256 on a GPU (1 at 1024 pixels), 8 on a CPU.
    only
        Measure groups whose name contains one of these comma-separated words: convit_tiny, 1024, resnet50… All of
        them take long on a CPU.
    modes
        Comma-separated: eager, compiled (on a GPU also replayed as one CUDA graph).
    train
        Also time training steps (forward, backward, AdamW).
    """
    from nearsight.bench import models as bench

    place = _prepare(device, batch, repeats, out)
    wanted = bench.wanted_entries(only)
    chosen = _words("--modes", modes, ("eager", "compiled"))
    if not chosen:
        raise ValueError("--modes is empty; choose from eager, compiled")
    measured = bench.measure_all(wanted, chosen, batch, place, train=train, repeats=repeats)
    rows = _print_rows(measured, bench.COLUMNS, place)
    print("\n".join(bench.ratios(rows)))
    if place.type == "cpu":
        print("models of one process share its memory: on a CPU ratios depend on their order, by up to a quarter")
    batches = str(batch) if batch is not None else f"{bench.default_batch(place)} (1 at 1024 pixels)"
    origin = {"batch": batches, "type": "bfloat16" if place.type == "cuda" else "float32"}
    _print_origin("models", rows, bench.COLUMNS, place, origin, out)
    return 0


def _prepare(device: str, batch: int | None, repeats: int, out: Path | None) -> torch.device:
    """The device, once the folder for results is there and the counts make sense."""
    from nearsight.bench.measure import make_folder, pick_device

    place = pick_device(device)
    make_folder(out)
    for option, count in (("--batch", batch), ("--repeats", repeats)):
        if count is not None and count < 1:
            raise ValueError(f"{option} must be at least 1, not {count}")
    return place


def _words(option: str, given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The comma-separated words of an option, each of them known."""
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    unknown = sorted(set(words) - set(known))
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        raise ValueError(f"{option}: {', '.join(unknown)} {verb} unknown; choose from {', '.join(known)}")
    if given and not words:
        raise ValueError(f"{option} {given!r} names nothing; choose from {', '.join(known)}")
    return words


def _print_rows(
    measured: Iterable[dict[str, Any]], columns: Sequence[str], device: torch.device
) -> list[dict[str, Any]]:
    """A table, row by row as they are measured; first a warning where the machine is busy."""
    from nearsight.bench.measure import as_row, as_table, busy_machine

    warning = busy_machine(device)
    if warning is not None:
        print(f"nearsight: {warning}", file=sys.stderr)
    print(as_table([], columns), flush=True)
    rows = []
    for row in measured:
        print(as_row(row, columns), flush=True)
        rows.append(row)
    return rows


def _print_origin(
    what: str,
    rows: list[dict[str, Any]],
    columns: Sequence[str],
    device: torch.device,
    origin: dict[str, str],
    out: Path | None,
) -> None:
    """Where the numbers come from, which is also written with them."""
    from nearsight.bench.measure import environment, write_results

    where = environment(device) | origin
    print("measured on " + ", ".join(f"{name} {value}" for name, value in where.items()))
    if out is not None:
        print(f"written to {write_results(out, what, rows, columns, where)}")
