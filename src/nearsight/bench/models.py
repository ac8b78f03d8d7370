"""Whole models side by side: ours, timm's and plain ones of the same width, in three modes.

Eager; compiled; and on a GPU "graph", compiled and replayed as one CUDA graph, which leaves out what Python and the
launches cost: what the trainer does, and the only mode in which small models are not a measure of the CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.acceleration import accelerate
from nearsight.bench.measure import Row, device_ms, median_ms, out_of_memory_named, peak_memory
from nearsight.models import create_model

MODES = ("eager", "compiled", "graph")
COLUMNS = ("group", "model", "mode", "inference images/s", "training images/s", "training GiB", "inference GiB")


@dataclass(frozen=True)
class Entry:
    """One model of a comparison; entries of one `group` are measured at the same size."""

    group: str
    name: str
    build: Callable[[], nn.Module]
    img_size: int = 224
    channels_last: bool = False  # the best memory order of a ResNet; transformers have no use for it


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, **options)


def _ours(name: str, **options: Any) -> nn.Module:
    return accelerate(create_model(name, **options))


def entries() -> list[Entry]:
    """Every comparison, in each group what it is about first: three ConViTs at 224 pixels, one at 1024, and ResNet-50.

    Two plain ViTs of the same width: timm's, and our own code with no gated block, which says what gating alone costs.
    """
    listed = []
    for size, dim, num_heads in (("tiny", 192, 4), ("small", 432, 9), ("base", 768, 16)):
        group = f"convit_{size}"
        listed += [
            Entry(group, "nearsight", partial(_ours, f"convit_{size}")),
            Entry(group, "timm", partial(_timm, f"convit_{size}")),
            Entry(group, "plain ViT", partial(_timm, "vit_base_patch16_224", embed_dim=dim, num_heads=num_heads)),
            Entry(group, "nearsight, no gates", partial(_ours, f"convit_{size}", num_gated_blocks=0)),
        ]
    listed += [
        Entry("convit_small_1024", "nearsight", partial(_ours, "convit_small", img_size=1024), img_size=1024),
        Entry("convit_small_1024", "timm", partial(_timm, "convit_small", img_size=1024), img_size=1024),
        Entry("resnet50", "attention, conv stem", partial(_ours, "sasa_resnet50_convstem"), channels_last=True),
        Entry("resnet50", "convolution", partial(_ours, "resnet50"), channels_last=True),
    ]
    return listed


def wanted_entries(only: str) -> list[Entry]:
    """Those of groups whose name contains one of the comma-separated words of `only`; all where it is empty."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    groups = ", ".join(dict.fromkeys(entry.group for entry in entries()))
    if only and not words:
        raise ValueError(f"--only {only!r} names nothing; there are {groups}")
    for word in words:
        if not any(word in entry.group for entry in entries()):
            raise ValueError(f"--only {word}: no group is called so; there are {groups}")
    return [entry for entry in entries() if not words or any(word in entry.group for word in words)]


def _at_once() -> None:
    return None


def measure(
    entry: Entry, compiled: bool, batch: int, device: torch.device, *,
    train: bool, repeats: int, wait: Callable[[], None] = _at_once,
) -> list[Row]:  # fmt: skip
    """Images a second and memory of one model, eager or compiled; compiled on a GPU, a second row has the graph's.

    bfloat16 autocast on a GPU, float32 on a CPU. `wait` is called when all is compiled and before anything is timed.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    order = torch.channels_last if entry.channels_last else torch.contiguous_format
    model = entry.build().to(device).to(memory_format=order)
    run = torch.compile(model) if compiled else model
    shape = (batch, 3, entry.img_size, entry.img_size)
    sets = [torch.randn(shape, device=device).to(memory_format=order) for _ in range(2)]
    labels = torch.randint(1000, (batch,), device=device)
    half = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), fused=half, capturable=half)

    def infer(images: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            return run(images)

    def learn(images: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    timers = {"compiled": median_ms} if compiled else {"eager": median_ms}
    if compiled and half:
        timers["graph"] = device_ms
    rows: list[Row] = [{"group": entry.group, "model": entry.name, "mode": mode} for mode in timers]
    steps = {"inference": infer, "training": learn} if train else {"inference": infer}
    for what, step in steps.items():  # all is compiled before anything is timed
        model.train(what == "training")
        step(sets[0])
        used = peak_memory(step, sets[0], device)
        rows[0][f"{what} GiB"] = used / 2**30
    wait()
    for what, step in steps.items():
        model.train(what == "training")
        for row, timer in zip(rows, timers.values(), strict=True):
            row[f"{what} images/s"] = batch / timer(step, sets, device, repeats) * 1e3
    if half:
        del model, run, optimizer
        torch.cuda.empty_cache()
    return rows


def default_batch(device: torch.device) -> int:
    return 256 if device.type == "cuda" else 8


def measure_all(
    wanted: Sequence[Entry], modes: Sequence[str], batch: int | None, device: torch.device, *, train: bool, repeats: int
) -> Iterator[Row]:
    """The rows of all entries, as they come. At more than 512 pixels: one image unless stated, eager, inference."""
    for entry in wanted:
        large = entry.img_size > 512
        for mode in modes:
            if large and mode == "compiled":
                continue
            count = batch or (1 if large else default_batch(device))
            with out_of_memory_named(count):
                yield from measure(entry, mode == "compiled", count, device, train=train and not large, repeats=repeats)


def ratios(rows: list[Row]) -> list[str]:
    """Each group's first model over the others, mode by mode: what the comparison is for."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        for mode in MODES:
            measured = [row for row in rows if row["group"] == group and row["mode"] == mode]
            for ours, other in ((measured[0], row) for row in measured[1:]):
                pairs = []
                for column in COLUMNS[3:]:
                    what, unit = column.split()
                    if ours.get(column) and other.get(column):
                        pairs.append(f"{what} {ours[column] / other[column]:.2f}× {unit}")
                lines.append(f"{group}, {mode}: {ours['model']} over {other['model']}: {', '.join(pairs)}")
    return lines
