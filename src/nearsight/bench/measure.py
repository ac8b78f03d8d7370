"""How benchmarks measure: medians after warm-up over several input sets, memory, and where the numbers come from."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from nearsight.kernels.linear_layer import processor_listing

Row = dict[str, Any]


def environment(device: torch.device) -> dict[str, str]:
    """Hardware and versions: no number is shown without them."""
    known = {}
    for package in ("torch", "triton", "timm"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    threads = torch.get_num_threads()
    processor = f"{_processor_name()}, {threads} thread{'s' * (threads > 1)}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor
    return {"hardware": name, "python": platform.python_version(), **known}


def _processor_name() -> str:
    """Linux knows it by the name its maker gave it, Python by its architecture at most.

    Rented machines may leave the generation out of the name ("AMD EPYC"): family and model tell.
    """
    first = processor_listing().partition("\n\n")[0]
    listed = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = listed.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in listed:
        return name
    return f"{name} (family {listed['cpu family']} model {listed['model']})"


def pick_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one, else the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is available; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


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


def peak_memory(step: Callable[[Any], Any], one: Any, device: torch.device) -> int:
    """Bytes of tensors that a step needs at once, above what is there before it."""
    if device.type != "cuda":
        return _peak_on_cpu(step, one)
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step(one)
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(step: Callable[[Any], Any], one: Any) -> int:
    """By what torch allocates and frees: the process's own size says as much about what earlier steps left it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler tells of itself, and of a GPU that is not there
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        step(one)
    changes = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in changes), initial=0))


def make_folder(out: Path | None) -> None:
    """Before anything is measured: results must have a place to go."""
    for path in () if out is None else (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {out}: {path} is a file; name a folder for the results")
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out {out}: cannot be made ({error.strerror}); name another folder") from error


def busy_machine(device: torch.device) -> str | None:
    """A warning where something else seems to run: two threads that wait for each other can take a hundred times as
    long then."""
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):  # Windows does not say
        return None
    if device.type == "cuda" or load < 0.75 * cores:
        return None
    return (
        f"in the last minute {load:.1f} of {cores} cores were busy: if something else is still running, times and "
        "ratios say little (OMP_NUM_THREADS=1 is steadier)"
    )


@contextmanager
def out_of_memory_named(batch: int) -> Iterator[None]:
    """Memory that runs out is said in one line, with the remedy."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "alloc" not in str(error):
            raise
        raise ValueError(f"--batch {batch} does not fit into memory; use a smaller one") from error


def as_row(row: Row, columns: Sequence[str]) -> str:
    """The last line of `as_table`, for rows that are shown as they come."""
    return as_table([row], columns).splitlines()[-1]


def as_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A Markdown table of the given columns, numbers to three digits."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if not isinstance(value, int | float):
            return str(value)
        return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"

    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def write_results(folder: Path, what: str, rows: Sequence[Row], columns: Sequence[str], where: dict[str, str]) -> Path:
    """`<what>_<hardware>.md` and `.json` in `folder`; returns the path of the first."""
    slug = "".join(character if character.isalnum() else "-" for character in where["hardware"].lower()).strip("-")
    path = folder / f"{what}_{slug}.md"
    origin = ", ".join(f"{name} {value}" for name, value in where.items())
    path.write_text(f"# {what}\n\nMeasured: {origin}.\n\n{as_table(rows, columns)}\n")
    path.with_suffix(".json").write_text(json.dumps({"environment": where, "rows": list(rows)}, indent=1) + "\n")
    return path
