"""Nothing of a run is opened through a link: a run may come from a stranger, and a link leads out of it.

The run's folder itself may be reached by a link. What lies in it may not, whether it is read, written or removed.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def plain(path: Path) -> Path:
    """The path of a file or folder of a run, or of none yet; a ``ValueError`` where it is a link, a pipe or a device.

    Folders on the way to it are asked for by their own call.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing there, or nothing that can be reached: whoever opens it is told
        return path
    if stat.S_ISLNK(mode):
        raise ValueError(
            f"{path} is a link, and nothing of a run is opened through a link; put what it points to in its place (the "
            "folder of a run as a whole may be a link)"
        )
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is neither a file nor a folder, but a pipe, a socket or a device; remove it")
    return path


def open_own(path: Path) -> int:
    """A file of this run alone, made where it is not there, to read and write: no link, by symbol or by inode."""
    descriptor = os.open(plain(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise ValueError(f"{path} is a hard link to another file, which would be overwritten; remove it")
    return descriptor


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link itself; never what a link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
