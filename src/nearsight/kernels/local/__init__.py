"""Local attention (SASA's Eq. 3) through the first backend that can run: `triton`, `numba`, `cpu`, the equation."""

from torch import Tensor

from ...functional import local as equation
from ...functional.local import Border, query_key_value
from ..dispatch import Backend, Verdict, choose, nothing_against, triton_backend, verdicts
from .cpu import CPU
from .numba import NUMBA
from .window import Embeddings, Window


def _reference(projected: Tensor, embeddings: Embeddings, window: Window) -> Tensor:
    query, key, value = query_key_value(projected)
    row, col = (None, None) if embeddings is None else (x.to(projected.dtype) for x in embeddings)
    kernel_size, stride, border = window
    return equation.local_attention(
        query[:, ::stride, ::stride], key, value, row, col, kernel_size=kernel_size, stride=stride, border=border
    )


BACKENDS = [
    triton_backend("triton", f"{__name__}.triton"),
    NUMBA,
    CPU,
    Backend("reference", nothing_against, _reference),
]


def _checked(projected: Tensor, row: Tensor | None, col: Tensor | None, window: Window) -> Embeddings:
    """The embeddings. Kernels trust all shapes: what they do not fit would be read from other memory."""
    if projected.dim() != 6 or projected.shape[3] not in (2, 3):
        shape = tuple(projected.shape)
        raise ValueError(f"the projection must be [batch, rows, cols, 2 or 3, heads, channels], not of shape {shape}")
    if not projected.is_floating_point():
        raise ValueError(f"the projection must be of a floating-point type, not {projected.dtype}")
    kernel_size, stride, border = window
    if kernel_size < 1 or stride < 1:
        raise ValueError(f"kernel_size and stride are at least 1, not {kernel_size} and {stride}")
    if border not in ("mask", "zeros"):
        raise ValueError(f"border must be 'mask' or 'zeros', not {border!r}")
    if (row is None) != (col is None):
        raise ValueError("row and column embeddings come together: give both or neither")
    if row is None or col is None:
        return None
    num_heads, head_dim = projected.shape[-2:]
    for embedding in (row, col):
        shapes = [(sets, kernel_size, head_dim // 2) for sets in (1, num_heads)]
        if tuple(embedding.shape) not in shapes or head_dim % 2:
            raise ValueError(
                f"for {num_heads} heads of {head_dim} channels and kernel_size={kernel_size} an embedding is "
                f"[1 or {num_heads}, {kernel_size}, {head_dim / 2:g}], not {list(embedding.shape)}"
            )
    return row, col


def local_attention(
    projected: Tensor, row_embedding: Tensor | None = None, col_embedding: Tensor | None = None,
    *, kernel_size: int, stride: int = 1, border: Border = "mask", backend: str | None = None,
) -> Tensor:  # fmt: skip
    """`functional.local_attention`, faster: a projection [B,H,W,p,n,d] → [B,I,J,n,d], I = ⌈H/stride⌉, J = ⌈W/stride⌉.

    Query, key (where p is 3) and value are taken packed, as one projection of the pixels makes them: they are read in
    place, and their gradient is one tensor that the projection's backward pass reads in place too. On the meta device,
    where only arithmetic is counted, the equation stands as written whatever the backend.
    """
    window = Window(kernel_size, stride, border)
    embeddings = _checked(projected, row_embedding, col_embedding, window)
    if projected.is_meta:
        return _reference(projected, embeddings, window)
    return choose(BACKENDS, backend, projected, embeddings, window).run(projected, embeddings, window)


def explain_local_attention(
    projected: Tensor, row_embedding: Tensor | None = None, col_embedding: Tensor | None = None,
    *, kernel_size: int, stride: int = 1, border: Border = "mask",
) -> list[Verdict]:  # fmt: skip
    """What each backend says about this call: it runs, or why it cannot."""
    window = Window(kernel_size, stride, border)
    return verdicts(BACKENDS, projected, _checked(projected, row_embedding, col_embedding, window), window)
