"""GPSA's joint kernels against the equation in float64, by Triton's interpreter: the same source that runs on a GPU."""

import pytest
import torch
from interpreter import results_of
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from nearsight.kernels.gpsa.joint_plans import FORWARD, forward_plan, spans, tiling
from nearsight.kernels.gpsa.layout import stride_unit

CASES = (
    "odd_rectangle", "prime_row", "one_tile", "padded", "all_tiles_of_an_image", "all_tiles_with_a_rest",
    "plans_in_use", "plans_in_use_48",
)  # fmt: skip


@pytest.fixture(scope="module")
def errors():
    return results_of("interpreted_joint.py")


@pytest.mark.parametrize("case", CASES)
def test_it_is_as_exact_as_the_equation_in_its_type(errors, case):
    """At most twice the error of the equation computed in the same type, for the output and every gradient."""
    assert len(errors[case]) == 6
    for name, (ours, plain) in errors[case].items():
        # v_pos and the gate are few numbers: the equation's error in the low precision may be small by luck.
        floor = 1e-3 if name == "parameters" else 0.0
        assert ours <= 2 * plain + floor, f"{name}: {ours:.1e}, the equation in the same type {plain:.1e}"


def test_every_case_is_compared(errors):
    assert set(errors) == {*CASES, "operators"}


def test_its_arithmetic_is_counted():
    """Two products forward, and two for each of them backward."""
    batch, tokens, heads, dim = 2, 15, 3, 8
    qkv = torch.empty(batch, tokens, 3, heads, dim, device="meta", requires_grad=True)
    weights, share = torch.empty(heads, tokens, 16, device="meta"), torch.empty(heads, device="meta")
    with FlopCounterMode(display=False) as counter:
        out, _ = torch.ops.nearsight.attend_gated(qkv, weights, share, 1.0, True)
        out.backward(torch.empty_like(out))
    assert counter.get_total_flops() == 3 * 2 * (2 * batch * heads * tokens**2 * dim)


def test_the_operators_keep_torchs_rules(errors):
    """Schema, fake implementation and autograd registration, by torch's own checks."""
    for name, results in errors["operators"].items():
        assert set(results.values()) == {"SUCCESS"}, f"{name}: {results}"


@pytest.mark.parametrize(
    ("length", "parts", "widths"),
    [
        (48, 2, (32, 16)), (64, 2, (64,)), (24, 2, (32,)), (8, 2, (16,)), (80, 2, (64, 16)),
        (196, 3, (128, 64, 16)), (256, 3, (256,)), (64, 3, (64,)), (49, 3, (64,)), (225, 3, (256,)),
        (5, 3, (16,)), (36, 3, (32, 16)),
    ],
)  # fmt: skip
def test_spans_cover_a_length_with_little_padding(length, parts, widths):
    chosen = spans(length, True, parts)
    assert tuple(width for _, width in chosen) == widths
    assert [start for start, _ in chosen] == [sum(widths[:index]) for index in range(len(widths))]
    whole = spans(length, False, parts)
    assert len(whole) == 1
    assert whole[0][1] >= length


@pytest.mark.parametrize(("tokens", "cut"), [(196, (64, 4)), (256, (64, 4)), (64, (64, 1)), (7, (16, 1))])
def test_tiles_cover_the_rows_and_are_no_larger_than_needed(tokens, cut):
    assert tiling(tokens, 64) == cut


def test_a_device_with_little_shared_memory_takes_a_tile_to_a_program():
    assert forward_plan(232_448) == forward_plan(None) == FORWARD  # an H200
    assert forward_plan(101_376) == FORWARD._replace(all_tiles=False)  # a GeForce


@pytest.mark.parametrize(("heads", "dim", "unit"), [(9, 24, 8), (4, 48, 8), (3, 12, 4), (3, 5, 1)])
def test_strides_are_counted_in_the_largest_unit_they_allow(heads, dim, unit):
    qkv = torch.empty(2, 7, 3, heads, dim).permute(2, 0, 3, 1, 4)
    assert stride_unit(qkv[0], torch.empty(2, 7, 9, 48).transpose(1, 2)) == unit
