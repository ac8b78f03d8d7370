"""The choice of a backend: visible, forced by name, and never silent about a refusal."""

import pytest
import torch

from nearsight.kernels import (
    explain_gated_positional_attention,
    explain_local_attention,
    gated_positional_attention,
    local_attention,
)
from nearsight.kernels.dispatch import Backend, choose, verdicts


def needs_even(number: int) -> str | None:
    return f"{number} is odd" if number % 2 else None


BACKENDS = [
    Backend("even", needs_even, lambda number: torch.tensor(number)),
    Backend("any", lambda number: None, lambda number: torch.tensor(-number)),
]


@pytest.mark.parametrize(("number", "expected"), [(4, "even"), (3, "any")])
def test_the_first_that_can_run_is_chosen(number, expected):
    assert choose(BACKENDS, None, number).name == expected
    assert [verdict.backend for verdict in verdicts(BACKENDS, number) if verdict.chosen] == [expected]


def test_a_forced_backend_runs_or_says_why_not():
    assert choose(BACKENDS, "any", 4).name == "any"
    with pytest.raises(ValueError, match="'even' cannot run here: 3 is odd"):
        choose(BACKENDS, "even", 3)
    with pytest.raises(ValueError, match="'fast' is unknown; choose one of even, any"):
        choose(BACKENDS, "fast", 3)


def test_verdicts_read_as_sentences():
    assert [str(verdict) for verdict in verdicts(BACKENDS, 3)] == ["even: cannot run, 3 is odd", "any: runs"]
    assert [str(verdict) for verdict in verdicts(BACKENDS, 2)] == ["even: runs", "any: could run"]


def test_on_a_cpu_the_gpu_kernels_refuse_with_a_reason():
    projected = torch.randn(1, 3, 5, 3, 2, 4)
    triton, cpu, reference = explain_local_attention(projected, kernel_size=3)
    assert triton.refusal is not None
    assert (cpu.chosen, reference.chosen) == (True, False)
    with pytest.raises(ValueError, match="'triton' cannot run here"):
        local_attention(projected, kernel_size=3, backend="triton")


def test_a_stride_is_left_to_the_reference():
    projected = torch.randn(1, 3, 5, 3, 2, 4)
    verdict = explain_local_attention(projected, kernel_size=3, stride=2)
    assert [v.backend for v in verdict if v.chosen] == ["reference"]
    assert "stride 2 is not 1" in str(verdict[1])
    assert local_attention(projected, kernel_size=3, stride=2).shape == (1, 2, 3, 2, 4)


def test_one_embedding_without_the_other_is_an_error():
    with pytest.raises(ValueError, match="give both or neither"):
        local_attention(torch.randn(1, 3, 5, 3, 2, 4), torch.randn(1, 3, 2), kernel_size=3)


def test_a_reservation_yields_to_another_but_not_to_force():
    shy = Backend("shy", needs_even, lambda number: torch.tensor(number), lambda number: "there is better")
    assert choose([shy, BACKENDS[1]], None, 4).name == "any"
    assert choose([shy, BACKENDS[1]], "shy", 4).name == "shy"
    assert choose([shy], None, 4).name == "shy"
    assert str(verdicts([shy, BACKENDS[1]], 4)[0]) == "shy: could run, but there is better"


def test_on_a_cpu_gpsa_is_separable_unless_forced():
    qkv = torch.randn(1, 35, 3, 1, 8)
    parameters = (torch.randn(1, 3), torch.zeros(1), torch.zeros(1))
    joint, fused, dense, separable = explain_gated_positional_attention(qkv, *parameters, grid_size=(5, 7))
    assert joint.refusal is not None
    assert fused.refusal is not None
    assert dense.reservation is not None
    assert separable.chosen
    forced = gated_positional_attention(qkv, *parameters, grid_size=(5, 7), backend="dense")
    torch.testing.assert_close(forced, gated_positional_attention(qkv, *parameters, grid_size=(5, 7)))


def test_meta_tensors_take_plain_operators():
    projected = torch.empty(1, 3, 5, 3, 2, 4, device="meta")
    assert local_attention(projected, kernel_size=3).shape == (1, 3, 5, 2, 4)
    assert explain_local_attention(projected, kernel_size=3)[-1].chosen
