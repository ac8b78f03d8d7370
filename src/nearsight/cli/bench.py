"""`nearsight bench layers` and `nearsight bench models`: measured side by side in one run, on this machine."""

import sys
from pathlib import Path
from typing import Literal

DeviceName = Literal["auto", "cuda", "cpu"]


def _pick_device(name: DeviceName):
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is available; use --device cpu")
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    return torch.device(chosen)


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


def _warn_if_busy(device) -> None:
    from nearsight.bench.measure import busy_machine

    warning = busy_machine(device)
    if warning is not None:
        print(f"nearsight: {warning}", file=sys.stderr)


def _check_counts(batch: int | None, repeats: int) -> None:
    for option, count in (("--batch", batch), ("--repeats", repeats)):
        if count is not None and count < 1:
            raise ValueError(f"{option} must be at least 1, not {count}")


def layers(
    *,
    batch: int | None = None,
    only: str = "",
    repeats: int = 10,
    explain: bool = False,
    device: DeviceName = "auto",
    out: Path | None = None,
) -> int:
    """Time 7×7 local attention beside the 3×3 convolution it replaces, unfold and FlexAttention, at four stages.

    Parameters
    ----------
    batch
        Images in a batch; 128 on a GPU, 4 on a CPU.
    only
        Comma-separated rows to measure: conv, projection, attention, layer, unfold, flex; all by default.
    repeats
        Rounds whose median is shown.
    explain
        Say which backend runs at each stage (and GPSA's on each grid, and a linear layer's), why the others do not,
        and measure nothing.
    device
        Where to measure.
    out
        Folder for layers_HARDWARE.md and .json.
    """
    import torch

    from nearsight.bench.layers import (
        COLUMNS,
        GRIDS,
        PEERS,
        STAGES,
        explain_feed_forward,
        explain_gated,
        explain_stage,
        measure_stage,
    )
    from nearsight.bench.measure import as_row, as_table, environment, make_folder, room_for, write_results

    place = _pick_device(device)
    if explain and out is not None:
        raise ValueError(
            f"--out {out}: --explain measures nothing, so there is nothing to write; leave one of them out"
        )
    make_folder(out)
    peers = _words("--only", only, PEERS) or PEERS
    if peers == ("flex",) and place.type != "cuda":
        raise ValueError("--only flex: FlexAttention is measured on a GPU only, and there is none")
    _check_counts(batch, repeats)
    size = (128 if place.type == "cuda" else 4) if batch is None else batch
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    if explain:
        print("\n".join(explain_stage(channels, side, size, dtype, place) for channels, side in STAGES))
        print("\n".join(explain_gated(side, 1, dtype, place) for side in GRIDS))
        print(explain_feed_forward(size, dtype, place))
        return 0
    _warn_if_busy(place)
    columns = COLUMNS if place.type == "cuda" else tuple(name for name in COLUMNS if name != "eager forward ms")
    print(as_table([], columns), flush=True)
    rows = []
    with room_for(size):
        for channels, side in STAGES:
            for row in measure_stage(channels, side, size, dtype, place, peers, repeats):
                print(as_row(row, columns), flush=True)
                rows.append(row)
    where = environment(place) | {"batch": str(size), "type": str(dtype).removeprefix("torch.")}
    print("measured on " + ", ".join(f"{name} {value}" for name, value in where.items()))
    if out is not None:
        print(f"written to {write_results(out, 'layers', rows, columns, where)}")
    return 0


def models(
    *,
    batch: int | None = None,
    only: str = "",
    modes: str = "eager,compiled",
    train: bool = True,
    repeats: int = 5,
    device: DeviceName = "auto",
    out: Path | None = None,
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
    repeats
        Rounds whose median is shown.
    device
        Where to measure.
    out
        Folder for models_HARDWARE.md and .json.
    """
    from nearsight.bench.measure import as_row, as_table, environment, make_folder, room_for, write_results
    from nearsight.bench.models import COLUMNS, measure, ratios, wanted_entries

    place = _pick_device(device)
    make_folder(out)
    wanted = wanted_entries(only)
    chosen_modes = _words("--modes", modes, ("eager", "compiled"))
    if not chosen_modes:
        raise ValueError("--modes is empty; choose from eager, compiled")
    _check_counts(batch, repeats)
    _warn_if_busy(place)
    print(as_table([], COLUMNS), flush=True)
    size = (256 if place.type == "cuda" else 8) if batch is None else batch
    rows = []
    for entry in wanted:
        large = entry.img_size > 512
        for mode in chosen_modes:
            if large and mode == "compiled":
                continue
            count = 1 if large and batch is None else size
            with room_for(count):
                measured = measure(entry, mode == "compiled", count, place, train=train and not large, repeats=repeats)
            print("\n".join(as_row(row, COLUMNS) for row in measured), flush=True)
            rows += measured
    print("\n".join(ratios(rows)))
    if place.type == "cpu":
        print("models of one process share its memory: on a CPU ratios depend on their order, by up to a quarter")
    batches = str(size) if batch is not None else f"{size} (1 at 1024 pixels)"
    where = environment(place) | {"batch": batches, "type": "bfloat16" if place.type == "cuda" else "float32"}
    print("measured on " + ", ".join(f"{name} {value}" for name, value in where.items()))
    if out is not None:
        print(f"written to {write_results(out, 'models', rows, COLUMNS, where)}")
    return 0
