"""Finding picture files in folders. Files that are not read are counted by reason, each with a first example."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from nearsight.images.formats import NO_PICTURES, readable_suffixes, why_not_read
from nearsight.text import printable

HIDDEN = "hidden"
_FOREIGN = "__MACOSX"  # what a Mac adds to archives: hidden files alone
_MOST_REASONS = 6  # that a person is told; a run's data.json has all


class PassedOver:
    """Files that are not read: how many for each reason, and one of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def __len__(self) -> int:
        return sum(self.counts.values())

    def add(self, name: str, reason: str, count: int = 1) -> None:
        self._examples.setdefault(reason, name)
        self.counts[reason] = self.counts.get(reason, 0) + count

    def merge(self, other: PassedOver, prefix: str = "") -> None:
        """Count what was found elsewhere, below a folder called `prefix`."""
        for reason, count in other.counts.items():
            self.add(prefix + other._examples[reason], reason, count)

    def notes(self, read: int) -> tuple[str, ...]:
        """A line for the user, beside the number of pictures that are read; a warning where pictures are lost."""
        if not self.counts:
            return ()
        often = sorted(self.counts, key=lambda reason: -self.counts[reason])
        told = [f"{self.counts[why]} {why}, such as {printable(self._examples[why])}" for why in often[:_MOST_REASONS]]
        more = [f"and {len(often) - _MOST_REASONS} kinds more"] if often[_MOST_REASONS:] else []
        files = f"{len(self)} of {len(self) + read} files are not read: {'; '.join(told + more)}"
        lost = any(why != HIDDEN and NO_PICTURES not in why for why in often)
        return (f"warning: {files}" if lost else files,)


def refusal(name: str, readable: tuple[str, ...]) -> str:
    """Why a file of this name is not taken for a picture, with its extension; empty for one that is."""
    base = PurePosixPath(name).name
    if is_hidden(base):
        return HIDDEN
    if base.lower().endswith(readable):
        return ""
    suffix = PurePosixPath(base).suffix.lower()
    return (
        f"{printable(suffix)} ({why_not_read(suffix)})"
        if suffix
        else "without an extension (add .jpg, or what they are)"
    )


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name == _FOREIGN


def pictures_below(folder: Path, passed: PassedOver, skip: Callable[[Path], bool] = lambda folder: False) -> list[str]:
    """Picture files at any depth, as sorted paths relative to `folder`; what else is there is counted in `passed`.

    Links are followed, circles are not, and folders to `skip` are passed over.
    """
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    readable = readable_suffixes()

    def not_listed(error: OSError) -> None:
        if Path(error.filename) != folder:
            passed.add(
                f"{Path(error.filename).relative_to(folder)}/", f"folders that cannot be opened ({error.strerror})"
            )

    for here, folders, files in os.walk(folder, onerror=not_listed, followlinks=True):
        status = os.stat(here)
        place = Path(here).relative_to(folder)
        if (status.st_dev, status.st_ino) in seen or skip(Path(here)):
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        for name in sorted(name for name in folders if is_hidden(name)):
            passed.add(f"{(place / name).as_posix()}/", HIDDEN)
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(files):
            path = (place / name).as_posix()
            if reason := refusal(name, readable):
                passed.add(path, reason)
            else:
                found.append(path)
    return sorted(found)


def picture_files(sources: Iterable[str | Path], passed: PassedOver | None = None) -> Iterator[Path]:
    """The files themselves, and the pictures in folders, sorted; what else is in the folders is counted in `passed`."""
    passed = PassedOver() if passed is None else passed
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = PassedOver()
            found = pictures_below(path, inside)
            if not found:
                why = "".join(f"; {note}" for note in inside.notes(0)) or ": it is empty"
                raise ValueError(f"there is no picture in {printable(str(path))}{why}")
            passed.merge(inside)
            yield from (path / name for name in found)
        elif path.exists():
            yield path
        else:
            raise ValueError(f"{path}: no such file or folder")
