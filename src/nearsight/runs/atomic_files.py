"""Writing files so that a crash, a kill or a full disk leaves either the old file or the new one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearsight.runs.exits import DiskError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut; file systems that cannot sync a folder are left alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes) -> None:
    """Create ``path`` (it must not exist) with ``content``, on the disk when this returns; mode follows the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """Give ``path`` new content in one step: readers see the old bytes or the new ones, never a part."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def to_json(value: Any) -> bytes:
    """Readable JSON; a NaN is an error here because JSON has none and a hidden one would be worse."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an operating-system error into a ``DiskError`` that says what was being done and what would help."""
    try:
        yield
    except OSError as error:
        remedy = "free some space" if error.errno in _FULL else "check that the folder exists and is writable"
        raise DiskError(
            f"{doing} failed: {error.strerror or error} ({error.filename or 'no file'}); {remedy}"
        ) from error
