"""Which implementation runs: an ordered list of backends, each able to say why it cannot.

The choice depends on the arguments alone (shapes, types, device, gradient mode), never on the environment, so that
the same call gives the same path everywhere the same hardware is.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Backend:
    """One implementation: `refusal` returns why it cannot run on these arguments, or None when it can."""

    name: str
    refusal: Callable[..., str | None]
    run: Callable[..., Tensor]


@dataclass(frozen=True)
class Verdict:
    """What one backend says about one call; `chosen` marks the one that would run."""

    backend: str
    refusal: str | None
    chosen: bool

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"{self.backend}: cannot run, {self.refusal}"
        return f"{self.backend}: {'runs' if self.chosen else 'could run'}"


def choose(backends: Sequence[Backend], forced: str | None, *arguments: Any, **options: Any) -> Backend:
    """The first backend that can run, or the `forced` one; ValueError when that one cannot."""
    if forced is None:
        return next(backend for backend in backends if backend.refusal(*arguments, **options) is None)
    by_name = {backend.name: backend for backend in backends}
    if forced not in by_name:
        raise ValueError(f"backend {forced!r} is unknown; choose one of {', '.join(by_name)}")
    refusal = by_name[forced].refusal(*arguments, **options)
    if refusal is not None:
        raise ValueError(f"backend {forced!r} cannot run here: {refusal}")
    return by_name[forced]


def verdicts(backends: Sequence[Backend], *arguments: Any, **options: Any) -> list[Verdict]:
    """What every backend says about one call, in order of preference."""
    refusals = [backend.refusal(*arguments, **options) for backend in backends]
    first = refusals.index(None)
    return [
        Verdict(backend.name, refusal, chosen=position == first)
        for position, (backend, refusal) in enumerate(zip(backends, refusals, strict=True))
    ]
