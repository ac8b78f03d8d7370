"""Checkpoints that survive kills, full disks and bit rot.

A checkpoint is a folder ``step-00001234/`` with one safetensors file per group of tensors (model, ema, optim), small
files such as ``state.json`` and ``metrics.jsonl``, and ``MANIFEST.json`` with the size and sha256 of each. It is
written under a temporary name, synced, renamed, and only then are older ones removed. A reader takes the newest whose
manifest verifies: neither safetensors nor zip notice a flipped bit by themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as serialise_safetensors
from torch import Tensor

from nearsight.runs.atomic_files import disk_errors, replace, sync_folder, to_json, write_new
from nearsight.runs.exits import DiskError, NonFiniteError
from nearsight.runs.layout import BEST, LAST, MANIFEST, STATE
from nearsight.runs.plain_paths import plain, remove
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import LOG_BYTES, RECORD_BYTES, WEIGHT_BYTES

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    files: dict[str, bytes]


class CheckpointStore:
    """The checkpoints of one run. ``keep`` newest ones stay, besides the one that ``best`` points to."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder = plain(folder)
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, oldest first; verified only when read."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of ``step``. Raises ``NonFiniteError`` before touching the disk when a value is not
        finite, ``DiskError`` when it cannot be written; in both cases older checkpoints are untouched."""
        if self._verified(step) is None:
            contents = _serialise(tensors)
            contents[STATE] = to_json({**state, "step": step, "format": FORMAT})
            contents.update(files or {})
            with disk_errors(f"saving the checkpoint of step {step}"):
                self._publish(step, contents)
        self.point(LAST, step)
        with disk_errors("removing old checkpoints"):
            self._prune(state.get(BEST))
        return self.path(step)

    def point(self, name: str, step: int) -> None:
        """Let ``name`` (``best`` or ``last``) mean ``step``, atomically."""
        with disk_errors(f"writing the pointer {name!r}"):
            replace(self.folder / f"{name}.json", to_json({"step": step, "checkpoint": self.path(step).name}))

    def pointed(self, name: str) -> int | None:
        """The step that ``name`` points to, None when there is no such pointer; ``DiskError`` when it is damaged."""
        path = self.folder / f"{name}.json"
        try:
            content = json.loads(read_bytes(plain(path), RECORD_BYTES))
            step = content["step"]
            if type(step) is not int or content["checkpoint"] != self.path(step).name:
                raise ValueError("it does not name a checkpoint")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DiskError(f"{path}: damaged ({error})") from error
        return step

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of ``step``, verified; ``DiskError`` names what is wrong with it."""
        return _read(self.path(step), step)

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; damaged ones are named in a warning and passed over, never removed.

        None when the run has no checkpoint yet; ``DiskError`` when all of them are damaged.
        """
        steps = self.steps()
        faults = []
        for step in reversed(steps):
            try:
                return self.load(step)
            except DiskError as error:
                faults.append(str(error))
                warnings.warn(f"damaged checkpoint passed over: {error}", stacklevel=2)
        if faults:
            raise DiskError(f"no readable checkpoint in {self.folder}: " + "; ".join(faults))
        return None

    def load_named(self, name: str) -> Checkpoint:
        """What ``best`` or ``last`` points to, or the newest good one where nothing was ever pointed at.

        ``DiskError`` where it is damaged or gone: figures of another checkpoint would stand under its name.
        """
        step = self.pointed(name)
        while step is not None:
            try:
                return self.load(step)
            except DiskError:
                before, step = step, self.pointed(name)
                if step == before:  # else a run that is going on has moved the pointer, and removed what it pointed to
                    raise
        newest = self.load_newest()
        if newest is None:
            raise DiskError(f"{self.folder} holds no checkpoint yet")
        return newest

    def set_aside_after(self, step: int) -> None:
        """Rename the (damaged) checkpoints newer than ``step``, so that pruning does not count them as good ones."""
        for other in self.steps():
            if other > step:
                aside = self.path(other).with_suffix(".damaged")
                remove(aside)
                os.rename(self.path(other), aside)

    def remove_leftovers(self) -> None:
        """Remove what a killed writer left behind; call only while holding the run's lock."""
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if ".tmp-" in entry.name:
                    remove(entry)

    def _publish(self, step: int, contents: Mapping[str, bytes]) -> None:
        target = self.path(step)
        temporary = self.folder / f"{target.name}.tmp-{os.getpid()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        try:
            temporary.mkdir()
            for name, content in contents.items():
                write_new(temporary / name, content)
            write_new(temporary / MANIFEST, to_json(_manifest(contents)))
            sync_folder(temporary)
            remove(target)  # damaged (a good one is not written again): it is replaced
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self.folder)

    def _prune(self, best: Mapping[str, Any] | None) -> None:
        """Remove old checkpoints, but not the best one: that of the state that was saved, and what is pointed to."""
        kept = {best["step"]} if best else set()
        with contextlib.suppress(DiskError):  # a damaged pointer is written anew when the run is resumed
            kept.add(self.pointed(BEST))
        for step in self.steps()[: -self.keep]:
            if step not in kept:
                # Renamed first: a kill in the middle of the removal leaves a leftover, not a damaged checkpoint.
                doomed = self.folder / f"{self.path(step).name}.tmp-{os.getpid()}"
                os.rename(self.path(step), doomed)
                remove(doomed)

    def _verified(self, step: int) -> Checkpoint | None:
        if not self.path(step).is_dir():
            return None
        try:
            return self.load(step)
        except DiskError:
            return None


def require_free_space(folder: Path, needed: int) -> None:
    """Refuse a run whose first checkpoint cannot fit; warn when three would not."""
    with disk_errors(f"looking at the free space under {folder}"):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskError(f"a checkpoint needs {needed:,} bytes and {folder} has {free:,} free; free some space first")
    if free < 3 * needed:
        warnings.warn(f"{folder} has room for fewer than three checkpoints ({free:,} bytes free)", stacklevel=2)


def _serialise(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, bytes]:
    contents = {}
    for group, members in tensors.items():
        # A copy each: safetensors refuses tensors that share memory, as tied weights do.
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in members.items()}
        for name, tensor in copies.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{group}: {name} has values that are not finite; the checkpoint was not written")
        contents[f"{group}.safetensors"] = serialise_safetensors(copies)
    return contents


def _manifest(contents: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "files": {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        },
    }


def _largest(name: str) -> int:
    """Of a file in a checkpoint, in bytes."""
    known = {".safetensors": WEIGHT_BYTES, ".jsonl": LOG_BYTES}
    return next((limit for suffix, limit in known.items() if name.endswith(suffix)), RECORD_BYTES)


def _read(folder: Path, step: int) -> Checkpoint:
    try:
        manifest = json.loads(read_bytes(plain(plain(folder) / MANIFEST), RECORD_BYTES))
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DiskError(f"{folder / MANIFEST}: unreadable ({error})") from error
    if manifest.get("format") != FORMAT:
        raise DiskError(f"{folder}: format {manifest.get('format')!r}; this version reads format {FORMAT}")
    contents = {}
    for name, (size, digest) in expected.items():
        if Path(name).name != name:
            raise DiskError(f"{folder / MANIFEST}: {name!r} is not a plain file name")
        try:
            content = read_bytes(plain(folder / name), _largest(name), exactly=size)
        except OSError as error:
            raise DiskError(f"{folder / name}: {error.strerror}") from error
        except (ValueError, MemoryError) as error:
            raise DiskError(f"{folder / name}: cannot be read as MANIFEST.json says ({error})") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise DiskError(f"{folder / name}: its content does not match MANIFEST.json")
        contents[name] = content
    try:
        state = json.loads(contents.pop(STATE))
        tensors = {
            name.removesuffix(".safetensors"): parse_safetensors(contents.pop(name))
            for name in list(contents)
            if name.endswith(".safetensors")
        }
    except (KeyError, ValueError, RecursionError, SafetensorError) as error:
        raise DiskError(f"{folder}: {error}") from error
    if not isinstance(state, dict) or state.get("step") != step:
        raise DiskError(f"{folder}: state.json is for step {state.get('step') if isinstance(state, dict) else None}")
    return Checkpoint(step=step, tensors=tensors, state=state, files=contents)
