"""ConViT's equations: pins, limits and identities, in float64 on a 5×7 grid."""

import pytest
import torch
from torch.autograd import gradcheck

from nearsight import functional as eq
from nearsight.geometry import head_centers

GRID = (5, 7)
TOKENS = 35


def tensors(heads=3, dim=4, count=3):
    return [torch.randn(2, heads, TOKENS, dim, dtype=torch.float64, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize(("grid", "expected"), [(14, 7.281), (7, 3.609), (8, 4.136), (16, 8.326), (32, 16.677)])
def test_nonlocality_of_uniform_attention(grid, expected):
    tokens = grid * grid
    uniform = torch.full((tokens, tokens), 1 / tokens, dtype=torch.float64)
    assert eq.nonlocality(uniform, (grid, grid)).item() == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("heads", "expected"), [(4, 0.986), (9, 1.262), (16, 1.562)])
def test_nonlocality_of_the_positional_part_at_birth(heads, expected):
    weights = eq.positional_weights(eq.convolutional_v_pos(head_centers(heads), 1.0), (14, 14))
    assert eq.nonlocality(weights, (14, 14)).mean().item() == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("heads", "peak"), [(4, 0.193), (9, 0.318), (16, 0.193)])
def test_peak_positional_weight_inside_the_image(heads, peak):
    weights = eq.positional_weights(eq.convolutional_v_pos(head_centers(heads), 1.0), (14, 14))
    middle = weights[:, 7 * 14 + 7]
    assert middle.max().item() == pytest.approx(peak, abs=6e-4)


def test_every_map_is_a_distribution():
    query, key = tensors(count=2)
    v_pos, gate = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    for weights in (
        eq.attention_weights(query, key),
        eq.positional_weights(v_pos, GRID),
        eq.positional_self_attention_weights(query, key, v_pos, grid_size=GRID),
        eq.gated_positional_attention_weights(query, key, v_pos, gate, grid_size=GRID),
    ):
        assert weights.min() >= 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_a_closed_gate_is_plain_attention_and_an_open_one_is_positional():
    query, key, value = tensors()
    v_pos = torch.randn(3, 3, dtype=torch.float64)
    closed = torch.full((3,), -60.0, dtype=torch.float64)
    torch.testing.assert_close(
        eq.gated_positional_attention(query, key, value, v_pos, closed, grid_size=GRID),
        eq.self_attention(query, key, value),
    )
    torch.testing.assert_close(
        eq.gated_positional_attention(query, key, value, v_pos, -closed, grid_size=GRID),
        eq.positional_weights(v_pos, GRID) @ value,
    )


def test_psa_without_position_is_plain_and_without_content_is_positional():
    query, key = tensors(count=2)
    none = torch.zeros(3, 3, dtype=torch.float64)
    torch.testing.assert_close(
        eq.positional_self_attention_weights(query, key, none, grid_size=GRID), eq.attention_weights(query, key)
    )
    v_pos = torch.randn(3, 3, dtype=torch.float64)
    weights = eq.positional_self_attention_weights(0 * query, key, v_pos, grid_size=GRID)
    torch.testing.assert_close(weights, eq.positional_weights(v_pos, GRID).expand_as(weights))


def test_strong_locality_puts_each_head_on_its_own_offset():
    weights = eq.positional_weights(eq.convolutional_v_pos(head_centers(9).double(), 50.0), GRID)
    query = 2 * 7 + 3
    for head, (row, col) in enumerate(head_centers(9).int().tolist()):
        assert weights[head, query, (2 + row) * 7 + 3 + col].item() == pytest.approx(1.0, abs=1e-12)


def test_positional_weights_split_into_rows_and_columns_whatever_v_pos_is():
    v_pos = torch.randn(4, 3, dtype=torch.float64)
    row, col = eq.positional_axis_weights(v_pos, GRID, torch.randn(4, dtype=torch.float64))
    product = torch.einsum("hia,hjb->hijab", row, col).reshape(4, TOKENS, TOKENS)
    torch.testing.assert_close(product, eq.positional_weights(v_pos, GRID))


def test_gradients_of_the_equation():
    query, key, value = [t.detach()[:1, :, :6].requires_grad_() for t in tensors(dim=2)]
    v_pos = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda *a: eq.gated_positional_attention(*a, grid_size=(2, 3)), (query, key, value, v_pos, gate))
