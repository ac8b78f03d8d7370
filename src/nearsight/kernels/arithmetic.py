"""How much arithmetic the custom operators do, for torch's FLOP counter: two for each multiply-add of a product.

Counted is what the kernels do: for local attention less than the equation as the paper writes it, for GPSA a little
more where position is a product of its own. The equations are counted on the meta device, where they run as written.
What a backward pass computes again is left out.
"""

import math

from torch.utils.flop_counter import register_flop_formula


def local_attention_flops(projected_shape, kernel_size: int, has_position: bool) -> int:
    """q·k and a·v over the k² keys of each window, q·r over its k rows and k columns with half the channels each."""
    batch, height, width, parts, num_heads, head_dim = projected_shape
    products = kernel_size**2 * (parts - 1) + kernel_size * has_position
    return 2 * batch * height * width * num_heads * head_dim * products


def mix_flops(value_shape) -> int:
    """P v."""
    batch, num_heads, tokens, head_dim = value_shape
    return 2 * batch * num_heads * tokens * tokens * head_dim


def joint_flops(qkv_shape) -> int:
    """q kᵀ, and the product with v: position is added to its weights."""
    batch, tokens, _, num_heads, head_dim = qkv_shape
    return 4 * batch * num_heads * tokens * tokens * head_dim


def linear_flops(x_shape, weight_shape) -> int:
    return 2 * math.prod(x_shape) * weight_shape[0]


def register(operators) -> None:
    """Tells torch's counter about the operators of the `nearsight` namespace that exist."""

    @register_flop_formula(operators.linear)
    def _(x, weight, bias, out_shape=None, **_):
        return linear_flops(x, weight)

    @register_flop_formula(operators.linear_backward)
    def _(gradient, x, weight, for_x, for_weight, for_bias, out_shape=None, **_):
        return (for_x + for_weight) * linear_flops(x, weight)

    @register_flop_formula(operators.local_attention_cpu)
    def _(projected, row, col, kernel_size, mask, out_shape=None, **_):
        return local_attention_flops(projected, kernel_size, row is not None)

    @register_flop_formula(operators.local_attention_cpu_backward)
    def _(grad, projected, row, col, kernel_size, mask, out_shape=None, **_):
        return 2 * local_attention_flops(projected, kernel_size, row is not None)


def register_triton(operators) -> None:
    """The same for the operators that need Triton."""

    @register_flop_formula(operators.local_attention)
    def _(projected, row, col, kernel_size, mask, save_lse, edition, out_shape=None, **_):
        return local_attention_flops(projected, kernel_size, row is not None)

    @register_flop_formula(operators.local_attention_backward)
    def _(grad, projected, row, col, output, lse, kernel_size, mask, out_shape=None, **_):
        return 2 * local_attention_flops(projected, kernel_size, row is not None)

    @register_flop_formula(operators.mix_positions)
    def _(content, value, weights, scale, out_shape=None, **_):
        return mix_flops(value)

    @register_flop_formula(operators.mix_positions_backward)
    def _(gradient, content, value, weights, scale, out_shape=None, **_):
        return 2 * mix_flops(value)

    @register_flop_formula(operators.attend_gated)
    def _(qkv, weights, share, scale, keep, out_shape=None, **_):
        return joint_flops(qkv)

    @register_flop_formula(operators.attend_gated_backward)
    def _(gradient, qkv, weights, share, log_sum, scale, out_shape=None, **_):
        return 2 * joint_flops(qkv)
