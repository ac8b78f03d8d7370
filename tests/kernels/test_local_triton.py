"""The Triton kernels against the equations in float64, by Triton's interpreter: the same source that runs on a GPU."""

import pytest
import torch
from interpreter import results_of
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

import nearsight.kernels  # noqa: F401 (it brings the operators)

LOCAL = (
    "threads_bfloat16", "threads_float32_heads", "threads_even_window", "threads_no_content",
    "dense_heads", "dense_padded_channels", "dense_no_content", "dense_even_window", "dense_wide_window",
    "dense_coarse_terms", "dense_coarse_terms_of_large_logits",
)  # fmt: skip


@pytest.fixture(scope="module")
def errors():
    return results_of("interpreted_local.py")


@pytest.mark.parametrize("case", LOCAL)
def test_local_attention_is_as_exact_as_the_equation_in_its_type(errors, case):
    """At most twice the error of the equation computed in the same type, for the output and every gradient."""
    assert len(errors["local"][case]) >= 4
    for name, (ours, plain) in errors["local"][case].items():
        # float32 logits pass through exp2 and a stored log-sum-exp, which costs a few units in the last place.
        floor = 3e-6 if "float32" in case or "even" in case else 0.0
        # Float16's terms are beside an equation in bfloat16, which has three bits less. Were they not rounded alike in
        # all kernels, large logits would show it.
        factor = 1 / 3 if "coarse" in case else 2
        assert ours <= factor * plain + floor, f"{name}: {ours:.1e}, the equation in the same type {plain:.1e}"


def test_every_case_is_compared(errors):
    assert set(errors["local"]) == set(LOCAL)


def test_the_operators_keep_torchs_rules(errors):
    """Schema, fake implementation and autograd registration, by torch's own checks."""
    for name, results in errors["operators"].items():
        assert set(results.values()) == {"SUCCESS"}, f"{name}: {results}"


@pytest.mark.parametrize("case", ["odd", "prime"])
def test_mixing_positions_is_exact_to_the_type(errors, case):
    for name, error in errors["mix"][case].items():
        assert error < 1e-3, f"{name}: {error:.1e}"


def test_its_arithmetic_is_counted():
    """Of every query and head: q·k and a·v over 49 keys, q·r over 7 rows and 7 columns; backward twice that."""
    projected = torch.empty(2, 5, 9, 3, 4, 16, device="meta", requires_grad=True)
    embeddings = [torch.empty(1, 7, 8, device="meta", requires_grad=True) for _ in range(2)]
    with FlopCounterMode(display=False) as counter:
        out, _ = torch.ops.nearsight.local_attention(projected, *embeddings, 7, True, True, "")
        out.backward(torch.empty_like(out))
    assert counter.get_total_flops() == 3 * 2 * (2 * 5 * 9 * 4) * (2 * 49 * 16 + 2 * 7 * 8)
