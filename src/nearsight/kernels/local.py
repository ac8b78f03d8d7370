"""Local attention (SASA's Eq. 3) through the fastest backend that can run."""

from torch import Tensor

from ..functional import local as equation
from ..functional.local import Border, query_key_value
from . import local_cpu
from .dispatch import HAS_TRITON, Backend, Verdict, choose, verdicts


def _no_triton(*arguments: Tensor | None, **options: object) -> str:
    return "Triton is not installed"


def _always(*arguments: Tensor | None, **options: object) -> None:
    return None


def _reference(
    projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    *, kernel_size: int, stride: int, border: Border,
) -> Tensor:  # fmt: skip
    query, key, value = query_key_value(projected)
    return equation.local_attention(
        query[:, ::stride, ::stride], key, value, row_embedding, col_embedding,
        kernel_size=kernel_size, stride=stride, border=border,
    )  # fmt: skip


if HAS_TRITON:
    from . import local_triton

    _triton = Backend("triton", local_triton.refusal, local_triton.run)
else:
    _triton = Backend("triton", _no_triton, _reference)

BACKENDS = [
    _triton,
    Backend("cpu", local_cpu.refusal, local_cpu.run),
    Backend("reference", _always, _reference),
]


def local_attention(
    projected: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
    backend: str | None = None,
) -> Tensor:
    """`functional.local_attention`, faster: a projection [B,H,W,p,n,d] → [B,I,J,n,d], I = ⌈H/stride⌉, J = ⌈W/stride⌉.

    Query, value and, where p is 3, key are taken packed, as one projection of the pixels makes them: they are read in
    place, and their gradient is one tensor that the projection's backward pass reads in place too.
    """
    if (row_embedding is None) != (col_embedding is None):
        raise ValueError("row and column embeddings come together: give both or neither")
    arguments = (projected, row_embedding, col_embedding)
    chosen = choose(BACKENDS, backend, *arguments, kernel_size=kernel_size, stride=stride, border=border)
    return chosen.run(*arguments, kernel_size=kernel_size, stride=stride, border=border)


def explain_local_attention(
    projected: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot."""
    arguments = (projected, row_embedding, col_embedding)
    return verdicts(BACKENDS, *arguments, kernel_size=kernel_size, stride=stride, border=border)
