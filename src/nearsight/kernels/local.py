"""Local attention (SASA's Eq. 3) through the fastest backend that can run."""

from torch import Tensor

from ..functional import local as equation
from ..functional.local import Border, query_key_value
from . import local_cpu
from .dispatch import HAS_TRITON, Backend, Verdict, choose, no_triton_here, nothing_against, verdicts


def _reference(
    projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    *, kernel_size: int, stride: int, border: Border,
) -> Tensor:  # fmt: skip
    query, key, value = query_key_value(projected)
    row, col = (None if x is None else x.to(projected.dtype) for x in (row_embedding, col_embedding))
    return equation.local_attention(
        query[:, ::stride, ::stride], key, value, row, col,
        kernel_size=kernel_size, stride=stride, border=border,
    )  # fmt: skip


if HAS_TRITON:
    from . import local_triton

    _triton = Backend("triton", local_triton.refusal, local_triton.run)
else:
    _triton = Backend("triton", lambda projected, *rest, **options: no_triton_here(projected), _reference)

BACKENDS = [
    _triton,
    Backend("cpu", local_cpu.refusal, local_cpu.run),
    Backend("reference", nothing_against, _reference),
]


def _check(
    projected: Tensor, row_embedding: Tensor | None, col_embedding: Tensor | None,
    kernel_size: int, stride: int, border: Border,
) -> None:  # fmt: skip
    """Kernels trust these shapes: what they do not fit would be read from other memory."""
    if projected.dim() != 6 or projected.shape[3] not in (2, 3):
        shape = tuple(projected.shape)
        raise ValueError(f"the projection must be [batch, rows, cols, 2 or 3, heads, channels], not of shape {shape}")
    if not projected.is_floating_point():
        raise ValueError(f"the projection must be of a floating-point type, not {projected.dtype}")
    if kernel_size < 1 or stride < 1:
        raise ValueError(f"kernel_size and stride are at least 1, not {kernel_size} and {stride}")
    if border not in ("mask", "zeros"):
        raise ValueError(f"border must be 'mask' or 'zeros', not {border!r}")
    if (row_embedding is None) != (col_embedding is None):
        raise ValueError("row and column embeddings come together: give both or neither")
    num_heads, head_dim = projected.shape[-2:]
    for embedding in (row_embedding, col_embedding):
        if embedding is None:
            continue
        shapes = [(sets, kernel_size, head_dim // 2) for sets in (1, num_heads)]
        if tuple(embedding.shape) not in shapes or head_dim % 2:
            raise ValueError(
                f"for {num_heads} heads of {head_dim} channels and kernel_size={kernel_size} an embedding is "
                f"[1 or {num_heads}, {kernel_size}, {head_dim / 2:g}], not {list(embedding.shape)}"
            )


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
    place, and their gradient is one tensor that the projection's backward pass reads in place too. On the meta device,
    where only arithmetic is counted, the equation stands as written whatever the backend.
    """
    _check(projected, row_embedding, col_embedding, kernel_size, stride, border)
    arguments = (projected, row_embedding, col_embedding)
    if projected.is_meta:
        return _reference(*arguments, kernel_size=kernel_size, stride=stride, border=border)
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
