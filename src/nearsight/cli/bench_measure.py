"""How benchmarks measure: medians after warm-up over several input sets, memory, and where the numbers come from."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def environment(device: torch.device) -> dict[str, str]:
    """Hardware and versions: no number is shown without them."""
    known = {}
    for package in ("torch", "triton", "timm"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    cpu = platform.processor() or platform.machine()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cpu}, {torch.get_num_threads()} threads"
    return {"hardware": name, "python": platform.python_version(), **known}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(step: Callable[[Any], Any], sets: Sequence[Any], device: torch.device, repeats: int = 10) -> float:
    """Milliseconds of one step: the median over `repeats` rounds, each round running every input set once."""
    for one in sets:
        step(one)
    synchronize(device)
    rounds = []
    for _ in range(repeats):
        started = time.perf_counter()
        for one in sets:
            step(one)
        synchronize(device)
        rounds.append((time.perf_counter() - started) / len(sets) * 1e3)
    return statistics.median(rounds)


def device_ms(step: Callable[[Any], Any], sets: Sequence[Any], device: torch.device, repeats: int = 10) -> float:
    """As `median_ms`, but replayed as a CUDA graph, so that what Python and the launches cost is left out."""
    if device.type != "cuda":
        return median_ms(step, sets, device, repeats)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for one in sets:
            step(one)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for one in sets:
                step(one)
    return median_ms(lambda _: graph.replay(), [None], device, repeats) / len(sets)


def peak_memory(step: Callable[[Any], Any], one: Any, device: torch.device) -> int | None:
    """Bytes that a step needs above what is there before it; None where the platform cannot tell."""
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step(one)
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def resident(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    reset.write_text("5")
    before = resident("VmRSS")
    step(one)
    return resident("VmHWM") - before


def as_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A Markdown table of the given columns, numbers to three digits."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}" if isinstance(
            value, int | float
        ) else str(value)  # fmt: skip

    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def write_results(folder: Path, what: str, rows: Sequence[Row], columns: Sequence[str], where: dict[str, str]) -> Path:
    """`<what>_<hardware>.md` and `.json` in `folder`; returns the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = "".join(character if character.isalnum() else "-" for character in where["hardware"].lower()).strip("-")
    path = folder / f"{what}_{slug}.md"
    origin = ", ".join(f"{name} {value}" for name, value in where.items())
    path.write_text(f"# {what}\n\nMeasured: {origin}.\n\n{as_table(rows, columns)}\n")
    path.with_suffix(".json").write_text(json.dumps({"environment": where, "rows": list(rows)}, indent=1) + "\n")
    return path
