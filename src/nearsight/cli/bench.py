"""`nearsight bench layers` and `nearsight bench models`: measured side by side in one run, on this machine."""

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
        raise ValueError(f"{option}: {', '.join(unknown)} is unknown; choose from {', '.join(known)}")
    return words


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

    from .bench_layers import (
        COLUMNS,
        GRIDS,
        PEERS,
        STAGES,
        explain_feed_forward,
        explain_gated,
        explain_stage,
        measure_stage,
    )
    from .bench_measure import as_table, environment, require_folder, write_results

    place = _pick_device(device)
    require_folder(out)
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
    rows = []
    for channels, side in STAGES:
        measured = measure_stage(channels, side, size, dtype, place, peers, repeats)
        print(as_table(measured, COLUMNS), flush=True)
        rows += measured
    where = environment(place) | {"batch": str(size), "type": str(dtype).removeprefix("torch.")}
    print("measured on " + ", ".join(f"{name} {value}" for name, value in where.items()))
    if out is not None:
        print(f"written to {write_results(out, 'layers', rows, COLUMNS, where)}")
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
    from .bench_measure import as_table, environment, require_folder, write_results
    from .bench_models import COLUMNS, entries, measure, ratios

    place = _pick_device(device)
    require_folder(out)
    words = [word.strip() for word in only.split(",") if word.strip()]
    groups = dict.fromkeys(entry.group for entry in entries())
    for word in words:
        if not any(word in group for group in groups):
            raise ValueError(f"--only {word}: no group is called so; there are {', '.join(groups)}")
    wanted = [entry for entry in entries() if not words or any(word in entry.group for word in words)]
    chosen_modes = _words("--modes", modes, ("eager", "compiled"))
    if not chosen_modes:
        raise ValueError("--modes is empty; choose from eager, compiled")
    _check_counts(batch, repeats)
    rows = []
    for entry in wanted:
        large = entry.img_size > 512
        size = (256 if place.type == "cuda" else 8) if batch is None else batch
        for mode in chosen_modes:
            if large and mode == "compiled":
                continue
            count = 1 if large and batch is None else size
            measured = measure(entry, mode == "compiled", count, place, train=train and not large, repeats=repeats)
            print("\n".join(as_table(measured, COLUMNS).splitlines()[2:]), flush=True)
            rows += measured
    print(as_table(rows, COLUMNS))
    print("\n".join(ratios(rows)))
    where = environment(place) | {"batch": str(batch or "default")}
    print("measured on " + ", ".join(f"{name} {value}" for name, value in where.items()))
    if out is not None:
        print(f"written to {write_results(out, 'models', rows, COLUMNS, where)}")
    return 0
