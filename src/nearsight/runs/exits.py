"""How a run ends: signals that ask for it, one exception per way of ending, each with its exit code.

The library raises; the command line turns the exception into one line and the code. Codes 65, 73, 74 and 75 are those
of sysexits.h (bad data, cannot create, input/output error, temporary failure).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

USAGE = 2
INTERRUPTED = 130


class RunEnded(Exception):
    """A run that stops before its last step for a reason the user should read."""

    code = 1


class NonFiniteError(RunEnded):
    """Loss or gradients stayed NaN or infinite, or a non-finite model was about to be saved."""

    code = 65


class FolderInUseError(RunEnded):
    """Another live process owns the run folder."""

    code = 73


class DiskError(RunEnded):
    """The run could not be written, or nothing readable was left to resume from."""

    code = 74


class PreemptedError(RunEnded):
    """A signal asked the run to stop; it saved and can be resumed."""

    code = 75


class OutOfMemoryError(RunEnded):
    """The model does not fit at the micro-batch that was asked for, or at one image."""


class DataLoadingError(RunEnded):
    """The data could not be read: too many bad images, or a data-loading process died."""


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


_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1


class StopRequest:
    """Whether a signal has asked this process to stop, and which."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(INTERRUPTED)  # the second Ctrl-C: at once, without cleaning up
        self.signal = signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Route SIGTERM, SIGINT and SIGUSR1 to a ``StopRequest`` and restore the old handlers afterwards.

    Outside the main thread Python cannot install handlers; the request then simply never fires.
    """
    request = StopRequest()
    previous = {}
    try:
        for number in _STOPPING:
            previous[number] = signal.signal(number, request._receive)
    except ValueError:
        previous.clear()
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies: torchrun's workers otherwise outlive a killed agent."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request took hold
        os._exit(1)
