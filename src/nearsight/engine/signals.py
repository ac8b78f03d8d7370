"""The first signal to stop sets a flag that the loop reads between two steps; a second Ctrl-C leaves at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nearsight.runs.exits import INTERRUPTED

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
