"""Checksums of what files hold, byte by byte, and what is remembered of them so that a file is read once.

A checksum is remembered under the file's path and what the file system says of it: size, inode, and the times of its
last change, of which the second (ctime) cannot be set back. It is remembered for the user, in one file of the cache
folder for each folder of data; without that file everything is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nearsight.datasets.archive import default_root
from nearsight.images.fingerprints import CHECKSUM, checksum
from nearsight.runs.atomic_files import replace
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import GIB, IMAGE_BYTES

_MAGIC = b"nearsight checksums 1\n"
_AT_ONCE = 256  # files that a thread takes at a time
_SETTLED = 2 * 10**9  # nanoseconds: a file changed later than that may change again within the same tick of the clock
_STALE = 1_000_000  # checksums of files as they no longer are, kept beside those of one set
_THREADS = 8


def piece_checksums(root: Path, pieces: Sequence[tuple[str, int, int]], read: Callable[[int], bytes]) -> np.ndarray:
    """uint8 [N, CHECKSUM] of pieces (path, offset, length; a length of -1 is the whole file), which lie below root.

    ``read`` gives the bytes of a piece by its number; what it raises an OSError or ValueError for counts as zeros.
    """
    memory = _Memory(root)
    statuses: dict[str, os.stat_result | None] = {}
    found = np.zeros((len(pieces), CHECKSUM), dtype=np.uint8)
    keys = np.zeros(len(pieces), dtype=np.uint64)
    settled = np.zeros(len(pieces), dtype=bool)
    now = time.time_ns()
    for number, (path, offset, length) in enumerate(pieces):
        status = statuses[path] if path in statuses else statuses.setdefault(path, _status(path))
        if length < 0:
            del statuses[path]  # each file once
        if status is not None:
            keys[number] = _key(path, offset, length, status)
            settled[number] = abs(now - status.st_ctime_ns) > _SETTLED
    known = memory.recall(keys, found) & settled
    missing = np.flatnonzero(~known)

    def read_part(start: int) -> None:
        for number in missing[start : start + _AT_ONCE]:
            try:
                content = read(int(number))
            except (OSError, ValueError):
                found[number], settled[number] = 0, False
            else:
                found[number] = np.frombuffer(checksum(content), dtype=np.uint8)

    # Reading and hashing release the GIL.
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(read_part, range(0, len(missing), _AT_ONCE)))
    if len(missing):
        memory.keep(keys[settled], found[settled])
    return found


def file_checksums(root: Path, names: Sequence[str]) -> np.ndarray:
    """uint8 [N, CHECKSUM] of whole files by their paths below root."""
    whole = [(os.path.join(root, name), 0, -1) for name in names]
    return piece_checksums(root, whole, lambda number: read_bytes(whole[number][0], IMAGE_BYTES))


def row_checksums(rows: Iterable[np.ndarray]) -> np.ndarray:
    """uint8 [N, CHECKSUM] of images in memory."""
    joined = b"".join(checksum(np.ascontiguousarray(row)) for row in rows)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, CHECKSUM)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _key(path: str, offset: int, length: int, status: os.stat_result) -> int:
    parts = (offset, length, status.st_size, status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns)
    text = os.fsencode(os.path.abspath(path)) + b"\0" + repr(parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


class _Memory:
    """Checksums by key, in a file of two columns and a checksum of its own."""

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(os.fsencode(os.path.abspath(root))).hexdigest()[:24]
        self.path = default_root() / "checksums" / name
        self.keys, self.values = np.zeros(0, dtype=np.uint64), np.zeros((0, CHECKSUM), dtype=np.uint8)
        with contextlib.suppress(OSError, ValueError):
            content = read_bytes(self.path, GIB)
            own, body = content[len(_MAGIC) : len(_MAGIC) + CHECKSUM], memoryview(content)[len(_MAGIC) + CHECKSUM :]
            if content.startswith(_MAGIC) and checksum(body) == own and len(body) % (8 + CHECKSUM) == 0:
                count = len(body) // (8 + CHECKSUM)
                self.keys = np.frombuffer(body, dtype=np.uint64, count=count)
                self.values = np.frombuffer(body, dtype=np.uint8, offset=8 * count).reshape(count, CHECKSUM)

    def recall(self, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Fill in the values of known keys; which of them are known."""
        if not len(self.keys):
            return np.zeros(len(keys), dtype=bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[places] == keys
        values[known] = self.values[places[known]]
        return known

    def keep(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Remember these besides what is remembered; a disk that refuses costs time the next time, no more."""
        if len(self.keys) > len(keys) + _STALE:
            self.keys, self.values = self.keys[:0], self.values[:0]
        joined = np.concatenate([keys, self.keys])
        order, first = np.unique(joined, return_index=True)
        body = order.tobytes() + np.concatenate([values, self.values])[first].tobytes()
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace(self.path, _MAGIC + checksum(body) + body)
