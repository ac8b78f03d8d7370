"""How a run ends: one exception per way of ending, each with its exit code.

The library raises; the command line turns the exception into one line and the code. Codes 65, 73, 74 and 75 are those
of sysexits.h (bad data, cannot create, input/output error, temporary failure).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

USAGE = 2
NON_FINITE = 65
FOLDER_IN_USE = 73
DISK = 74
PREEMPTED = 75
INTERRUPTED = 130


class RunEnded(Exception):
    """A run that stops before its last step for a reason the user should read."""

    code = 1


class NonFiniteError(RunEnded):
    """Loss or gradients stayed NaN or infinite, or a non-finite model was about to be saved."""

    code = NON_FINITE


class FolderInUseError(RunEnded):
    """Another live process owns the run folder."""

    code = FOLDER_IN_USE


class DiskError(RunEnded):
    """The run could not be written, or nothing readable was left to resume from."""

    code = DISK


class PreemptedError(RunEnded):
    """A signal asked the run to stop; it saved and can be resumed."""

    code = PREEMPTED


class OutOfMemoryError(RunEnded):
    """The model does not fit at the micro-batch that was asked for, or at one image."""


class DataLoadingError(RunEnded):
    """Reading the training data failed beyond the policy for bad images."""


@contextmanager
def reported() -> Iterator[None]:
    """For a program's outermost level: a bad argument or an early end becomes one line on stderr and its exit code."""
    try:
        yield
        return
    except RunEnded as ended:
        words, code = str(ended), ended.code
    except ValueError as error:
        words, code = str(error), USAGE
    except KeyboardInterrupt:
        words, code = "interrupted", INTERRUPTED
    print(f"nearsight: {words}", file=sys.stderr, flush=True)
    raise SystemExit(code)
