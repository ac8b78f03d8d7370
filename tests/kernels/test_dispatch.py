"""The choice of a backend: visible, forced by name, and never silent about a refusal."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from nearsight.kernels import (
    dispatch,
    explain_gated_positional_attention,
    explain_local_attention,
    gated_positional_attention,
    local_attention,
)
from nearsight.kernels.dispatch import Backend, choose, verdicts
from nearsight.kernels.local.window import Window


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
    with pytest.raises(ValueError, match="'even' cannot run here: 3 is odd; without `backend` one that can is taken"):
        choose(BACKENDS, "even", 3)
    with pytest.raises(ValueError, match="'fast' is unknown; choose one of even, any"):
        choose(BACKENDS, "fast", 3)


CPU_BACKEND = "numba" if find_spec("numba") else "cpu"


def test_verdicts_read_as_sentences():
    assert [str(verdict) for verdict in verdicts(BACKENDS, 3)] == ["even: cannot run, 3 is odd", "any: runs"]
    assert [str(verdict) for verdict in verdicts(BACKENDS, 2)] == ["even: runs", "any: could run"]


def test_on_a_cpu_the_gpu_kernels_refuse_with_a_reason():
    projected = torch.randn(1, 3, 5, 3, 2, 4)
    verdicts = {verdict.backend: verdict for verdict in explain_local_attention(projected, kernel_size=3)}
    assert list(verdicts) == ["triton", "numba", "cpu", "reference"]
    assert verdicts["triton"].refusal is not None
    assert [name for name, verdict in verdicts.items() if verdict.chosen] == [CPU_BACKEND]
    with pytest.raises(ValueError, match="'triton' cannot run here"):
        local_attention(projected, kernel_size=3, backend="triton")


def test_a_stride_is_no_matter_for_tiles():
    projected = torch.randn(1, 3, 5, 3, 2, 4, dtype=torch.float64)  # which only tiles and the reference take on a CPU
    verdict = explain_local_attention(projected, kernel_size=3, stride=2)
    assert [v.backend for v in verdict if v.chosen] == ["reference"]
    assert "stride 2 is not 1" in " ".join(map(str, verdict))
    assert local_attention(projected, kernel_size=3, stride=2).shape == (1, 2, 3, 2, 4)


@pytest.mark.parametrize(("dtype", "embedded"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_embeddings_may_be_of_another_type_in_every_backend(dtype, embedded):
    projected, (row, col) = torch.randn(1, 4, 5, 3, 2, 8, dtype=dtype), torch.randn(2, 1, 3, 4, dtype=embedded)
    found = [local_attention(projected, row, col, kernel_size=3, backend=name) for name in ("cpu", "reference")]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("shape", "embeddings", "options", "message"),
    [
        ((1, 3, 5, 3, 2, 4), [(1, 3, 2)], {}, "give both or neither"),
        ((1, 3, 5, 3, 2, 4), [(1, 5, 2), (1, 5, 2)], {}, r"an embedding is \[1 or 2, 3, 2\], not \[1, 5, 2\]"),
        ((1, 3, 5, 3, 2, 4), [(3, 3, 2), (3, 3, 2)], {}, r"not \[3, 3, 2\]"),
        ((1, 3, 5, 3, 2, 5), [(1, 3, 2), (1, 3, 2)], {}, r"an embedding is \[1 or 2, 3, 2.5\]"),
        ((1, 3, 5, 2, 4), [], {}, "the projection must be"),
        ((1, 3, 5, 3, 2, 4), [], {"border": "reflect"}, "'mask' or 'zeros', not 'reflect'"),
        ((1, 3, 5, 3, 2, 4), [], {"kernel_size": 0}, "at least 1, not 0 and 1"),
    ],
)
def test_shapes_that_kernels_would_misread_are_refused(shape, embeddings, options, message):
    tensors = [torch.zeros(size) for size in (shape, *embeddings)]
    with pytest.raises(ValueError, match=message):
        local_attention(*tensors, **{"kernel_size": 3, **options})


@pytest.mark.parametrize(
    ("grid_size", "heads", "message"),
    [((5, 6), 2, "does not have the 35 positions"), ((5, 7), 3, r"for 2 heads v_pos is \[2, 3\]")],
)
def test_gpsa_refuses_shapes_that_kernels_would_misread(grid_size, heads, message):
    qkv, v_pos, gate = torch.zeros(1, 35, 3, 2, 8), torch.zeros(heads, 3), torch.zeros(heads)
    for function in (gated_positional_attention, explain_gated_positional_attention):
        with pytest.raises(ValueError, match=message):
            function(qkv, v_pos, gate, gate, grid_size=grid_size)


def test_kinds_of_arguments_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"floating-point type, not torch.int32"):
        local_attention(torch.zeros(1, 3, 5, 3, 2, 4, dtype=torch.int32), kernel_size=3)
    with pytest.raises(ValueError, match=r"grid_size is \(rows, cols\) of patches, not 5"):
        gated_positional_attention(torch.zeros(1, 25, 3, 2, 8), torch.zeros(2, 3), *[torch.zeros(2)] * 2, grid_size=5)


def test_images_beyond_32_bit_places_are_left_to_others():
    triton = pytest.importorskip("nearsight.kernels.local.triton")
    small, large = (torch.empty(1, side, side, 3, 8, 8, device="meta") for side in (56, 8192))
    assert triton.refusal(small, None, Window(7)) is None
    assert "too large for 32-bit places" in triton.refusal(large, None, Window(7))


def test_embeddings_of_unlike_sets_are_left_to_the_equation():
    """The kernels' table has one of both for every head, or one for all."""
    triton = pytest.importorskip("nearsight.kernels.local.triton")
    projected, shared, of_each = torch.empty(1, 4, 4, 3, 2, 8), torch.empty(1, 7, 4), torch.empty(2, 7, 4)
    assert triton.refusal(projected, (of_each, of_each), Window(7)) is None
    assert "2 sets of row and 1 of column" in triton.refusal(projected, (of_each, shared), Window(7))


@pytest.mark.parametrize(
    ("capability", "hip", "expected"),
    [((7, 5), None, "compute capability 7.5 is below 8.0"), ((8, 0), None, None), ((9, 4), "6.2", "not for ROCm")],
)
def test_devices_the_kernels_are_not_for_are_refused(monkeypatch, capability, hip, expected):
    monkeypatch.setattr(dispatch, "_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    said = dispatch._device_trouble(0)
    assert said is None if expected is None else expected in said


def test_a_reservation_yields_to_another_but_not_to_force():
    shy = Backend("shy", needs_even, lambda number: torch.tensor(number), lambda number: "there is better")
    assert choose([shy, BACKENDS[1]], None, 4).name == "any"
    assert choose([shy, BACKENDS[1]], "shy", 4).name == "shy"
    assert choose([shy], None, 4).name == "shy"
    assert str(verdicts([shy, BACKENDS[1]], 4)[0]) == "shy: could run, but there is better"


def test_on_a_cpu_gpsa_is_separable_unless_forced():
    qkv = torch.randn(1, 35, 3, 1, 8)
    parameters = (torch.randn(1, 3), torch.zeros(1), torch.zeros(1))
    joint, fused, loops, dense, separable = explain_gated_positional_attention(qkv, *parameters, grid_size=(5, 7))
    assert joint.refusal is not None
    assert fused.refusal is not None
    assert loops.reservation is not None  # of one image
    assert dense.reservation is not None
    assert separable.chosen
    forced = gated_positional_attention(qkv, *parameters, grid_size=(5, 7), backend="dense")
    torch.testing.assert_close(forced, gated_positional_attention(qkv, *parameters, grid_size=(5, 7)))


def test_meta_tensors_take_plain_operators():
    projected = torch.empty(1, 3, 5, 3, 2, 4, device="meta")
    assert local_attention(projected, kernel_size=3).shape == (1, 3, 5, 2, 4)
    assert explain_local_attention(projected, kernel_size=3)[-1].chosen


def test_without_triton_its_backends_say_so_and_others_run():
    script = """
import sys
sys.modules["triton"] = None  # as if it were not installed
import torch
from nearsight import kernels
projected, qkv = torch.randn(1, 3, 5, 3, 2, 4), torch.randn(1, 15, 3, 2, 4)
parameters = torch.randn(2, 3), torch.randn(2), torch.randn(2)
assert kernels.local_attention(projected, kernel_size=3).shape == (1, 3, 5, 2, 4)
assert kernels.gated_positional_attention(qkv, *parameters, grid_size=(3, 5)).shape == (1, 2, 15, 4)
said = kernels.explain_local_attention(projected, kernel_size=3)
said += kernels.explain_gated_positional_attention(qkv, *parameters, grid_size=(3, 5))
print([str(one) for one in said if "Triton is not installed" in str(one)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [name in done.stdout for name in ("triton:", "joint:", "fused:", "cpu:")] == [True, True, True, False]
