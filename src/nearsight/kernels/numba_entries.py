# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""Attention's loops as C functions of one pointer, compiled once and kept in numba's cache on the disk.

numba takes a function in its cache for the present one by the function's own file and closure, and does not look at
what it calls. So a hash of all sources, `edition`, is in the closures here.
"""

import hashlib
from functools import cache
from pathlib import Path

from numba import cfunc, types

from . import numba_tokens
from .local import numba_loops

SIGNATURE = types.void(types.CPointer(types.int64))
SOURCES = (
    "numba_entries.py", "numba_tokens.py", "numba_vectors.py", "sizes.py",
    "local/numba_loops.py", "local/numba_maps.py", "local/numba_window.py",
)  # fmt: skip


def edition() -> int:
    folder = Path(__file__).parent
    sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    return int.from_bytes(hashlib.sha256(sources).digest()[:7], "big")


def _entries(edition):
    def forward(job):
        _ = edition
        numba_loops.forward(job)

    def backward(job):
        _ = edition
        numba_loops.backward(job)

    def tokens_forward(job):
        _ = edition
        numba_tokens.forward(job)

    def tokens_backward(job):
        _ = edition
        numba_tokens.backward(job)

    return {entry.__name__: entry for entry in (forward, backward, tokens_forward, tokens_backward)}


@cache
def compiled(name: str):
    """The C function of this name in `_entries`; its address is `compiled(name).address`."""
    entry = _entries(edition())[name]
    try:
        return cfunc(SIGNATURE, cache=True)(entry)
    except (RuntimeError, OSError):  # no folder for a cache can be written
        return cfunc(SIGNATURE)(entry)
