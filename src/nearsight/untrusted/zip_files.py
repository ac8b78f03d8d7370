"""The directory of a .zip from elsewhere, of bounded size, with entries that do not claim more than they hold."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from nearsight.text import printable
from nearsight.untrusted.limits import DIRECTORY_BYTES, UNPACKED_BYTES, UNPACKED_FREE, UNPACKED_RATIO

_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_LONGEST_COMMENT = 65_535


def check_directory(path: Path, most: int = DIRECTORY_BYTES) -> None:
    """Refuse a .zip whose list of entries is longer than ``most`` bytes: `zipfile` holds all of it as objects."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, size - _LONGEST_COMMENT - 22 - 20 - 56))
        tail = file.read()
    end = tail.rfind(_END)
    if end < 0 or len(tail) < end + 22:
        raise ValueError("not a zip file, or cut short")
    (listed,) = struct.unpack_from("<I", tail, end + 12)
    if listed == 0xFFFFFFFF and (long := tail.rfind(_END_64, 0, end)) >= 0 and len(tail) >= long + 56:
        (listed,) = struct.unpack_from("<Q", tail, long + 40)
    if listed > most:
        raise ValueError(f"its list of entries has {listed:,} bytes; at most {most:,} are read")


def bounded_entries(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries, once it is known that all of them together unpack to what may be held in memory."""
    packed, entries = path.stat().st_size, archive.infolist()
    claimed = sum(entry.file_size for entry in entries)
    if claimed > UNPACKED_BYTES:
        raise ValueError(f"unpacks to {claimed:,} bytes, more than {UNPACKED_BYTES // 2**30} GiB")
    if claimed > max(UNPACKED_FREE, UNPACKED_RATIO * packed):
        largest = max(entries, key=lambda entry: entry.file_size)
        raise ValueError(
            f"{packed:,} bytes unpack to {claimed:,}, more than {UNPACKED_RATIO:g}:1 "
            f"({printable(largest.filename)} to {largest.file_size:,})"
        )
    return entries
