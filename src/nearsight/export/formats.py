"""`export`: one file or folder for each format, written beside its place, run, and put there when it agrees."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nearsight.export import folders, graphs
from nearsight.export.checking import Source
from nearsight.export.loading import task_of
from nearsight.tasks import task_kind


class Exported(NamedTuple):
    """What was written, and what was found when it was run."""

    path: Path
    notes: tuple[str, ...]


class Format(NamedTuple):
    """A way to write a model: the last part of its path, and what writes and checks it."""

    suffix: str
    help: str
    write: Callable[[Source, Path], Sequence[str]]
    """(source, where) → notes; raises where the written model, run again, does not agree."""


def export(source: str | Path, to: str, out: str | Path | None = None) -> Exported:
    """Write the model of a run, or of a saved folder, in a format of `FORMATS`, and run what was written.

    Nothing is left behind where the result does not agree with the model, and nothing that is there is overwritten.
    """
    if to not in FORMATS:
        raise ValueError(f"to must be one of {', '.join(FORMATS)}, not {to!r}")
    path = Path(source)
    if not path.is_dir():
        raise ValueError(f"{source} is no folder; give that of a run, or of `nearsight export --to hub`")
    chosen = FORMATS[to]
    target = Path(out) if out else Path(f"{path.resolve().name}{chosen.suffix}")
    if target.exists():
        raise ValueError(f"{target} is there already; choose another --out, or remove it")
    task = task_of(path)
    predictor = task_kind(task).load(path, device="cpu")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as beside:
        made = Path(beside) / target.name
        notes = chosen.write(Source(path, task, predictor.portable()), made)
        shutil.move(made, target)
    return Exported(target, tuple(notes))


FORMATS = {
    "onnx": Format(".onnx", "for onnxruntime and others", graphs.write_onnx),
    "onnx-int8": Format("-int8.onnx", "the same with weights of 8 bits, smaller and less exact", graphs.write_int8),
    "torch-export": Format(".pt2", "a graph for torch.export.load", graphs.write_program),
    "hub": Format("-hub", "a folder with safetensors, config.json and a model card", folders.write_hub),
    "timm": Format("-timm", "a folder for timm.create_model('local-dir:…')", folders.write_timm),
    "safetensors": Format(".safetensors", "the weights alone, under our names", folders.write_weights),
}
