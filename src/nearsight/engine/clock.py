"""Where the time goes: training, waiting for data, and everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds spent in the training loop since the last ``lap``, and in the run as a whole (resumes included)."""

    def __init__(self, seconds_before: float = 0.0) -> None:
        self._began = time.perf_counter() - seconds_before
        self._lap_began = time.perf_counter()
        self._waited = 0.0
        self._elsewhere = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here was spent waiting for data."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Time in here (evaluation, saving) does not count as training."""
        began = time.perf_counter()
        yield
        self._elsewhere += time.perf_counter() - began

    def lap(self) -> tuple[float, float]:
        """(training seconds since the last lap, share of them spent waiting for data)."""
        now = time.perf_counter()
        seconds = max(now - self._lap_began - self._elsewhere, 1e-9)
        share = min(1.0, self._waited / seconds)
        self._lap_began, self._waited, self._elsewhere = now, 0.0, 0.0
        return seconds, share
