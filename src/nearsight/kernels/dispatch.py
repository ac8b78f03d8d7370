"""Which implementation runs: an ordered list of backends, each able to say why it cannot.

The choice depends on the arguments alone (shapes, types, device, gradient mode), never on the environment, so that
the same call gives the same path everywhere the same hardware is.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .compat import exporting, plain_operators_needed
from .later import COMPILER, FLOP_COUNTER, constant_when_compiled, when_imported

HAS_TRITON = importlib.util.find_spec("triton") is not None


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@constant_when_compiled
def _device_trouble(device: int) -> str | None:
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA's compiler, not for ROCm's"
    major, minor = _capability(device)
    return f"compute capability {major}.{minor} is below 8.0" if major < 8 else None


def no_triton_here(tensor: Tensor) -> str | None:
    """Why no Triton kernel runs on this tensor, whatever its shape and type, or None."""
    if not HAS_TRITON:
        return "Triton is not installed"
    refusal = plain_operators_needed()
    if refusal is not None:
        return refusal
    if not tensor.is_cuda:
        return f"the tensors are on {tensor.device.type}, not on a CUDA device"
    return _device_trouble(tensor.get_device())


def known_equal(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two grids are the same. Never in an exported graph: asking would bind it to its example's size."""
    return not exporting() and one == other


def nothing_against(*arguments: Any) -> None:
    """The refusal of a backend that can always run, and the reservation of one without any: None."""
    return None


@dataclass(frozen=True)
class Backend:
    """One implementation, with reasons against using it: None means that there is none.

    `refusal` says why it cannot run on these arguments, `reservation` why it should not although it could.
    """

    name: str
    refusal: Callable[..., str | None]
    run: Callable[..., Tensor]
    reservation: Callable[..., str | None] = nothing_against


_kernels: dict[str, Any] = {}
"""The files of Triton kernels by name; None until they are loaded."""
_loading = False


def _load_kernels() -> None:
    """All files at once: one of them imports the compiler, which asks for them again."""
    global _loading
    if _loading:
        return
    _loading = True
    try:
        for module in _kernels:
            _kernels[module] = import_module(module)
    finally:
        _loading = False


def _load_kernels_in_time() -> None:
    with contextlib.suppress(ImportError):  # a file that somebody imports by itself is half there: then on first use
        _load_kernels()


def triton_backend(name: str, module: str, reservation: Callable[..., str | None] = nothing_against) -> Backend:
    """A backend of Triton kernels; `module` has its `refusal`, for tensors that Triton runs on, and its `run`.

    The module, and Triton with it, is imported for the first such tensor. Nothing is imported while a graph is traced
    or FLOPs are counted: where the compiler or the counter is loaded, the operators are there already.
    """

    def kernels() -> Any:
        if _kernels[module] is None:
            _load_kernels()
        return _kernels[module]

    def refusal(tensor: Tensor, *others: Any) -> str | None:
        reason = no_triton_here(tensor)
        return kernels().refusal(tensor, *others) if reason is None else reason

    def run(*arguments: Any) -> Tensor:
        return kernels().run(*arguments)

    if HAS_TRITON:
        _kernels[module] = None
        for bringing_triton in (COMPILER, FLOP_COUNTER):
            when_imported(bringing_triton, _load_kernels_in_time)
    return Backend(name, refusal, run, reservation)


@dataclass(frozen=True)
class Verdict:
    """What one backend says about one call; `chosen` marks the one that would run."""

    backend: str
    refusal: str | None
    reservation: str | None
    chosen: bool

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"{self.backend}: cannot run, {self.refusal}"
        if self.chosen:
            return f"{self.backend}: runs"
        return f"{self.backend}: could run" + ("" if self.reservation is None else f", but {self.reservation}")


def named(backends: Sequence[Backend], name: str) -> Backend:
    """The backend of this name; a ValueError lists them where there is none."""
    by_name = {backend.name: backend for backend in backends}
    if name not in by_name:
        raise ValueError(f"backend {name!r} is unknown; choose one of {', '.join(by_name)}")
    return by_name[name]


def choose(backends: Sequence[Backend], forced: str | None, *arguments: Any) -> Backend:
    """The first backend with nothing against it, or the `forced` one; ValueError when that one cannot run."""
    if forced is None:
        able = (backend for backend in backends if backend.refusal(*arguments) is None)
        first = next(able)
        if first.reservation(*arguments) is None:
            return first
        return next((one for one in able if one.reservation(*arguments) is None), first)
    backend = named(backends, forced)
    refusal = backend.refusal(*arguments)
    if refusal is not None:
        raise ValueError(f"backend {forced!r} cannot run here: {refusal}; without `backend` one that can is taken")
    return backend


def verdicts(backends: Sequence[Backend], *arguments: Any) -> list[Verdict]:
    """What every backend says about one call, in order of preference."""
    chosen = choose(backends, None, *arguments)
    return [
        Verdict(one.name, one.refusal(*arguments), one.reservation(*arguments), chosen=one is chosen)
        for one in backends
    ]
