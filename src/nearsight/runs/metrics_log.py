"""``metrics.jsonl``: one JSON object a line, each step exactly once, through any number of kills and resumes.

Lines after the last checkpoint are written again by the resumed run, so they must go; a torn last line must go too.
Each checkpoint therefore carries the log up to its step, and resuming puts that copy back.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

from nearsight.runs.atomic_files import disk_errors, replace
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import LOG_BYTES


class MetricsLog:
    """The log of a running run, in memory and on the disk; a full disk delays the second and loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = bytearray()
        self._file: BinaryIO | None = None

    def restore(self, content: bytes) -> None:
        """Make the log exactly ``content`` (empty for a new run) and open it for appending."""
        self._content = bytearray(content)
        with disk_errors("writing the metrics log"):
            self._rewrite()

    def append(self, record: dict[str, Any]) -> None:
        """Add one line."""
        line = json_line(record).encode() + b"\n"
        self._content += line
        try:
            if self._file is None:
                self._rewrite()
            elif self._file.write(line) != len(line):
                self.release()  # a short write: the next line rewrites the whole log
        except OSError:
            self.release()

    def content(self) -> bytes:
        return bytes(self._content)

    def flush(self) -> None:
        """Put all of it on the disk; ``DiskError`` when that is not possible."""
        with disk_errors("writing the metrics log"):
            if self._file is None:
                self._rewrite()
            if self._file is not None:
                os.fsync(self._file.fileno())

    def _rewrite(self) -> None:
        self.release()
        replace(self.path, bytes(self._content))
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - open for the length of the run

    def release(self) -> None:
        """Close the file; the next line opens it anew."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a log, which may belong to a run that is still going: a torn last line is left out."""
    records = []
    for line in read_bytes(path, LOG_BYTES).split(b"\n"):
        if line:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if isinstance(record, dict):
                records.append(record)
    return records


def json_line(record: dict[str, Any]) -> str:
    """A record as JSON. NaN and infinities are kept, spelled as the strings JSON lacks numbers for."""
    return json.dumps(spelled(record), allow_nan=False)


def spelled(value: Any) -> Any:
    """``value`` with NaN and infinities as the strings that ``float`` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spelled(item) for item in value]
    return value
