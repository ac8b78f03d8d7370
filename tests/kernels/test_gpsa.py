"""GPSA split in two halves: every backend equals Eq. 6-7 and its gradients."""

import pytest
import torch

from nearsight.functional.attention import gated_positional_attention_weights
from nearsight.kernels import gated_positional_attention

GRID = (3, 7)


def arguments(grid=GRID, heads=3, dim=5, dtype=torch.float64):
    tokens = grid[0] * grid[1]
    qkv = torch.randn(2, tokens, 3, heads, dim, dtype=dtype)
    v_pos, pos_bias, gate = (
        torch.randn(heads, 3, dtype=dtype),
        torch.randn(heads, dtype=dtype),
        torch.randn(heads, dtype=dtype),
    )
    return tuple(x.detach().clone().requires_grad_() for x in (qkv, v_pos, pos_bias, gate))


def equation(qkv, v_pos, pos_bias, gate, grid, scale=None):
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return gated_positional_attention_weights(query, key, v_pos, gate, grid_size=grid, scale=scale) @ value


@pytest.mark.parametrize("backend", ["dense", "separable", None])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_the_equation(backend, scale):
    inputs = arguments()
    ours = gated_positional_attention(*inputs, grid_size=GRID, scale=scale, backend=backend)
    exact = equation(*inputs, GRID, scale)
    torch.testing.assert_close(ours, exact)
    gradient = torch.randn_like(exact)
    got = torch.autograd.grad(ours, inputs, gradient)
    wanted = torch.autograd.grad(exact, inputs, gradient, allow_unused=True)
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        # The softmax cancels the bias: the equation does not even use it, and its gradient is zero.
        torch.testing.assert_close(one, torch.zeros_like(one) if index == 2 else other)


@pytest.mark.parametrize("gate", [-60.0, 60.0])
def test_a_shut_gate_leaves_one_half(gate):
    qkv, v_pos, pos_bias, _ = arguments()
    gates = torch.full((3,), gate).double()
    out = gated_positional_attention(qkv, v_pos, pos_bias, gates, grid_size=GRID)
    query, key, value = qkv.unbind(2)
    other = torch.stack((query + 1.0, key.flip(1), value), dim=2)
    changed = gated_positional_attention(other, v_pos, pos_bias, gates, grid_size=GRID)
    assert torch.allclose(out, changed) == (gate > 0)


def test_forms_agree_on_a_large_rectangle():
    inputs = arguments(grid=(2, 31), heads=2, dim=4)
    dense, separable = (
        gated_positional_attention(*inputs, grid_size=(2, 31), backend=backend) for backend in ("dense", "separable")
    )
    torch.testing.assert_close(dense, separable)


def test_it_compiles_in_one_graph_and_exports():
    class Layer(torch.nn.Module):
        def forward(self, *inputs):
            return gated_positional_attention(*inputs, grid_size=GRID)

    inputs = arguments(dtype=torch.float32)
    exact = equation(*inputs, GRID)
    torch.testing.assert_close(torch.compile(Layer(), fullgraph=True, backend="aot_eager")(*inputs), exact)
    exported = torch.export.export(Layer(), inputs)
    assert not [node for node in exported.graph.nodes if "nearsight" in str(node.target)]
    torch.testing.assert_close(exported.module()(*inputs), exact)


def test_what_is_not_packed_is_refused():
    _, *parameters = arguments()
    with pytest.raises(ValueError, match="positions, 3, heads"):
        gated_positional_attention(torch.randn(2, 3, 21, 5), *parameters, grid_size=GRID)
