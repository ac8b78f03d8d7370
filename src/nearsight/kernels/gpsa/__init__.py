"""Gated positional attention (ConViT's Eq. 6–7), split so that no B×n×N×N map is ever made.

Both maps are distributions over keys and the gate mixes them after their softmaxes, hence

    GPSA = (1 − σ(λ)) · softmax(scale · q kᵀ) v + σ(λ) · P v,        P = softmax(v_posᵀ r_δ)

where P has no batch axis. Its logit a‖δ‖² + b·δ_row + c·δ_col has no cross term, so on any H×W grid P = P_row ⊗ P_col.
A file for each backend: `joint` does both halves of rows of up to 256 keys in one GPU kernel; `fused` multiplies by P
and mixes in one GPU kernel, after torch's fused attention; `loops` has `numba`, which does both halves on a CPU for up
to 256 positions; `plain` has `dense` and `separable`, for any device.

Query, key and value come packed, as one projection makes them, so that their gradients can go back to it as one tensor
without a copy. Shapes: B batch, n heads, N = H·W positions in row-major order, d channels of a head.
"""

from torch import Tensor

from ...functional import attention as equation
from ...geometry import Grid
from ..dispatch import Verdict, choose, triton_backend, verdicts
from .layout import Positions, heads_outside
from .loops import NUMBA
from .plain import DENSE, SEPARABLE, dense_reservation

BACKENDS = [
    triton_backend("joint", f"{__name__}.joint"),
    triton_backend("fused", f"{__name__}.fused", dense_reservation),
    NUMBA,
    DENSE,
    SEPARABLE,
]


def _checked(qkv: Tensor, positions: Positions) -> Positions:
    """Kernels trust these shapes: what they do not fit would be read from other memory."""
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be [batch, positions, 3, heads, channels], not of shape {tuple(qkv.shape)}")
    _, tokens, _, num_heads, _ = qkv.shape
    *parameters, grid_size = positions
    if isinstance(grid_size, int):
        raise ValueError(f"grid_size is (rows, cols) of patches, not {grid_size}")
    if grid_size[0] * grid_size[1] != tokens:
        raise ValueError(f"grid_size={tuple(grid_size)} does not have the {tokens} positions of qkv")
    shapes = [tuple(x.shape) for x in parameters]
    if shapes != [(num_heads, 3), (num_heads,), (num_heads,)]:
        raise ValueError(
            f"for {num_heads} heads v_pos is [{num_heads}, 3], pos_bias and gate are [{num_heads}]; got {shapes}"
        )
    return positions


def gated_positional_attention(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor,
    *, grid_size: Grid, scale: float | None = None, backend: str | None = None,
) -> Tensor:  # fmt: skip
    """qkv [B,N,3,n,d], v_pos [n,3] over (‖δ‖², δ_row, δ_col), pos_bias [n], gate λ [n] → [B,n,N,d].

    `scale` multiplies the content logits; None means 1/√d. On the meta device, where only arithmetic is counted, the
    equation stands as written whatever the backend.
    """
    positions = _checked(qkv, Positions(v_pos, pos_bias, gate, grid_size))
    if qkv.is_meta:
        query, key, value = heads_outside(qkv)
        return equation.gated_positional_attention(query, key, value, v_pos, gate, grid_size=grid_size, scale=scale)
    return choose(BACKENDS, backend, qkv, positions, scale).run(qkv, positions, scale)


def explain_gated_positional_attention(
    qkv: Tensor, v_pos: Tensor, pos_bias: Tensor, gate: Tensor, *, grid_size: Grid, scale: float | None = None
) -> list[Verdict]:
    """What each backend says about this call: it runs, or why it cannot."""
    return verdicts(BACKENDS, qkv, _checked(qkv, Positions(v_pos, pos_bias, gate, grid_size)), scale)
