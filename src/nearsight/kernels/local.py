"""Local attention (SASA's Eq. 3) through the fastest backend that can run."""

from torch import Tensor

from ..functional import local as reference
from ..functional.local import Border
from . import local_cpu
from .dispatch import HAS_TRITON, Backend, Verdict, choose, verdicts


def _no_triton(*arguments: Tensor | None, **options: object) -> str:
    return "Triton is not installed"


def _always(*arguments: Tensor | None, **options: object) -> None:
    return None


if HAS_TRITON:
    from . import local_triton

    _triton = Backend("triton", local_triton.refusal, local_triton.run)
else:
    _triton = Backend("triton", _no_triton, reference.local_attention)

BACKENDS = [
    _triton,
    Backend("cpu", local_cpu.refusal, local_cpu.run),
    Backend("reference", _always, reference.local_attention),
]


def local_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
    backend: str | None = None,
) -> Tensor:
    """As `functional.local.local_attention`, faster: queries [B,I,J,n,d], keys and values [B,H,W,n,d] → [B,I,J,n,d].

    Query, key and value may be views of one projection: where heads and channels are dense they are read in place.
    """
    arguments = (query, key, value, row_embedding, col_embedding)
    chosen = choose(BACKENDS, backend, *arguments, kernel_size=kernel_size, stride=stride, border=border)
    return chosen.run(*arguments, kernel_size=kernel_size, stride=stride, border=border)


def explain_local_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    row_embedding: Tensor | None = None,
    col_embedding: Tensor | None = None,
    *,
    kernel_size: int,
    stride: int = 1,
    border: Border = "mask",
) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot."""
    return verdicts(
        BACKENDS, query, key, value, row_embedding, col_embedding,
        kernel_size=kernel_size, stride=stride, border=border,
    )  # fmt: skip
