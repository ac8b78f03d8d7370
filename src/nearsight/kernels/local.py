"""Local attention (SASA's Eq. 3) through the fastest backend that can run."""

from torch import Tensor

from ..functional import local as reference
from ..functional.local import Border
from .dispatch import Backend, Verdict, choose, verdicts

BACKENDS = [Backend("reference", lambda *arguments, **options: None, reference.local_attention)]


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
    """As `functional.local.local_attention`, faster: [B,I,J,n,d] queries, [B,H,W,n,d] keys and values → [B,I,J,n,d]."""
    arguments = (query, key, value, row_embedding, col_embedding)
    options = {"kernel_size": kernel_size, "stride": stride, "border": border}
    return choose(BACKENDS, backend, *arguments, **options).run(*arguments, **options)


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
