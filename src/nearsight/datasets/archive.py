"""Unpacking archives that are not trusted: nothing outside the target, no links, no bombs, nothing half-done left."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import itertools
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, cast

from nearsight.text import printable
from nearsight.untrusted.limits import ARCHIVE_BYTES, ARCHIVE_FREE, ENTRIES, UNPACKED_RATIO

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


_CHUNK = 2**18  # bytes written at a time
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error)
"""What the standard library raises where an archive is damaged."""


@dataclass(frozen=True)
class ArchiveLimits:
    max_bytes: int = ARCHIVE_BYTES
    """Of everything unpacked."""
    max_ratio: float = UNPACKED_RATIO
    """Unpacked bytes over the archive's own; counts from the first `free_bytes` on."""
    free_bytes: int = ARCHIVE_FREE
    max_entries: int = ENTRIES


DEFAULT_LIMITS = ArchiveLimits()


@dataclass
class _Budget:
    """Counts what is really written, whatever the archive's headers say."""

    limits: ArchiveLimits
    archive_bytes: int
    written: int = 0
    entries: int = 0

    def entry(self, name: str) -> None:
        self.entries += 1
        if self.entries > self.limits.max_entries:
            raise ValueError(f"more than {self.limits.max_entries} entries, at {printable(name)!r}")

    def add(self, count: int, name: str) -> None:
        self.written += count
        ratio_bytes = max(self.limits.free_bytes, int(self.limits.max_ratio * self.archive_bytes))
        if self.written > min(self.limits.max_bytes, ratio_bytes):
            why = f"over {self.limits.max_ratio:g}:1" if ratio_bytes < self.limits.max_bytes else "too large"
            raise ValueError(f"unpacks to more than {self.written - 1} bytes ({why}), at {printable(name)!r}")


def _refuse(name: str, why: str) -> ValueError:
    return ValueError(f"refused entry {printable(name)!r}: {why}")


def _safe_parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or "\0" in name or (len(name) > 1 and name[1] == ":"):
        raise _refuse(name, "absolute or foreign path")
    if ".." in path.parts:
        raise _refuse(name, "leads out of the archive's folder")
    if any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise _refuse(name, "a name longer than 255 bytes")
    return path.parts


def _tar_entries(tar: tarfile.TarFile, target: Path) -> Iterator[tuple[str, IO[bytes]]]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # the list tarfile keeps would grow with every member
        if member.isdir():
            _safe_parts(member.name)
            continue
        if not member.isfile() or member.issparse():
            raise _refuse(member.name, "not a plain file (link, device or sparse)")
        _safe_parts(member.name)
        try:
            tarfile.data_filter(member, str(target))
        except tarfile.FilterError as error:
            raise _refuse(member.name, str(error)) from None
        content = tar.extractfile(member)
        if content is not None:
            yield member.name, content


def _zip_entries(archive: zipfile.ZipFile) -> Iterator[tuple[str, IO[bytes]]]:
    for entry in archive.infolist():
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refuse(entry.filename, "not a plain file (link or device)")
        if entry.flag_bits & 1:
            raise _refuse(entry.filename, "encrypted")
        _safe_parts(entry.orig_filename)  # `filename` may have been cleaned up by zipfile
        if not entry.is_dir():
            with archive.open(entry) as content:
                yield entry.filename, content


class _Counted:
    """What a decompressor gives, read from its start to its end and counted: headers of a tar claim any size."""

    def __init__(self, source: IO[bytes], budget: _Budget) -> None:
        self._source, self._budget = source, budget

    def read(self, size: int) -> bytes:
        content = self._source.read(size)
        self._budget.add(len(content), "what is passed over")
        return content


_DECOMPRESSORS = {b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ\0": lzma.LZMAFile}
"""By how a file begins."""


@contextlib.contextmanager
def opened_tar(archive: Path, limits: ArchiveLimits = DEFAULT_LIMITS) -> Iterator[tarfile.TarFile]:
    """A tar, of which a compressed one is read once, from front to back."""
    with open(archive, "rb") as file:
        start = file.read(6)
    opener = next((opener for magic, opener in _DECOMPRESSORS.items() if start.startswith(magic)), None)
    if opener is None:
        with tarfile.open(archive, "r:") as plain:
            yield plain
        return
    with cast("IO[bytes]", opener(archive)) as content:
        # Headers, padding and entries that are not wanted are passed over besides what is written.
        twice = replace(limits, max_ratio=2 * limits.max_ratio, free_bytes=2 * limits.free_bytes)
        counted = _Counted(content, _Budget(twice, archive.stat().st_size))
        with tarfile.open(fileobj=cast("IO[bytes]", counted), mode="r|") as stream:
            yield stream


@contextlib.contextmanager
def _entries(archive: Path, target: Path, limits: ArchiveLimits) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    if zipfile.is_zipfile(archive) and not _is_tar(archive, limits):
        with zipfile.ZipFile(archive) as opened_zip:
            yield _zip_entries(opened_zip)
    else:
        with opened_tar(archive, limits) as tar:
            yield _tar_entries(tar, target)


def _is_tar(archive: Path, limits: ArchiveLimits) -> bool:
    try:
        with opened_tar(archive, limits):
            return True
    except (*UNREADABLE, ValueError):
        return False


def _unpack(archive: Path, target: Path, suffixes: tuple[str, ...], limits: ArchiveLimits) -> None:
    budget = _Budget(limits, archive.stat().st_size)
    taken: set[str] = set()
    with _entries(archive, target, limits) as entries:
        for name, content in entries:
            budget.entry(name)
            parts = _safe_parts(name)
            folded = "/".join(parts).casefold()
            if folded in taken:
                raise _refuse(name, "the same name twice (but for upper and lower case)")
            taken.add(folded)
            destination = target.joinpath(*parts)
            destination.parent.mkdir(parents=True, exist_ok=True)
            with open(destination, "xb") as out:
                while name.lower().endswith(suffixes) and (chunk := content.read(_CHUNK)):
                    budget.add(len(chunk), name)
                    out.write(chunk)


def safe_extract(
    archive: Path, target: Path, suffixes: tuple[str, ...], limits: ArchiveLimits = DEFAULT_LIMITS
) -> None:
    """Unpack those files of a .zip or .tar that end in one of the suffixes into the new folder `target`.

    Others are there as empty files, so that readers of the folder can count what they pass over. The folder appears
    complete or not at all. Raises ValueError naming the entry that was refused. Archives within the
    archive stay packed.
    """
    if target.exists():
        raise ValueError(f"{printable(str(target))} exists already")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name[:100]}.", dir=target.parent, ignore_cleanup_errors=True
    ) as private:
        work = Path(private) / "files"
        work.mkdir()  # with the permissions of any new folder, so that others may share it
        try:
            _unpack(archive, work, suffixes, limits)
            os.replace(work, target)
        except (*UNREADABLE, NotImplementedError, RuntimeError, ValueError) as error:
            if isinstance(error, OSError) and target.exists():  # another process finished the same work first
                return
            raise ValueError(f"{printable(str(archive))}: {printable(str(error), 400)}") from None


def first_names(archive: Path, most: int = 20_000) -> Iterator[str]:
    """Names of an archive's first files; none of one that cannot be read, which opening it will say."""
    with contextlib.suppress(*UNREADABLE, ValueError):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                yield from opened.namelist()
        else:
            with opened_tar(archive) as tar:
                yield from (member.name for member in itertools.islice(tar, most))


def default_root() -> Path:
    """Where named datasets and unpacked archives are kept: $NEARSIGHT_DATA, or the user's cache folder."""
    chosen = os.environ.get("NEARSIGHT_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearsight"


def unpacked(path: Path, suffixes: tuple[str, ...], kind: str) -> Path:
    """The files of an archive that end so, unpacked once; another archive under the same name is another folder.

    `kind` keeps apart those who want other files of the same archive.
    """
    status = path.stat()
    identity = f"{kind} with the names of others\0{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    target = default_root() / "unpacked" / hashlib.sha256(os.fsencode(identity)).hexdigest()[:24]
    if not target.is_dir():
        safe_extract(path, target, suffixes)
    return target
