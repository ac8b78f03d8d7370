"""Reading files that may be anything: a device, a pipe, a terabyte of nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nearsight.text import LONGEST_PATH, printable


def read_bytes(path: str | Path, most: int, *, exactly: int | None = None) -> bytes:
    """A plain file of at most ``most`` bytes, and of ``exactly`` so many where that is known, told before reading.

    ``ValueError`` says why it is not such a file, without its name; ``OSError`` where it cannot be opened or read.
    """
    # Without blocking: to open a pipe that nobody writes to would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _plain_size(os.fstat(descriptor), most)
        if exactly is not None and size != exactly:
            raise ValueError(f"has {size:,} bytes instead of {exactly:,}")
        content = os.read(descriptor, size)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):  # a call gives at most 2 GiB
            content += more
    finally:
        os.close(descriptor)
    if len(content) != size:
        raise ValueError("was cut short while it was read")
    return content


def check_plain_file(path: str | Path, most: int) -> int:
    """The size of a file that a library opens by its name; ``ValueError`` for what `read_bytes` would refuse."""
    return _plain_size(os.stat(path), most)


def _plain_size(status: os.stat_result, most: int) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a plain file")
    if status.st_size > most:
        raise ValueError(f"larger than {most} bytes")
    return status.st_size


def read_text(path: str | Path, most: int) -> str:
    """A plain file of bounded size as UTF-8, each line's end a newline; ``ValueError`` names what is anything else."""
    try:
        text = read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    else:
        return text.replace("\r\n", "\n").replace("\r", "\n")
    raise ValueError(f"{printable(str(path), LONGEST_PATH)}: {reason}")
