"""Local attention by loops that numba compiles: as near to the equation as float32 is, whatever sizes and threads."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nearsight.functional.local import local_attention as equation
from nearsight.functional.local import query_key_value
from nearsight.kernels import explain_local_attention, local_attention, torch_threads
from nearsight.kernels.local import numba as backend

if find_spec("numba") is not None:
    from nearsight.kernels import numba_entries

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


def arguments(batch, height, width, heads, dim, kernel_size, *, sets=1, content=True, positions=True):
    projected = torch.randn(batch, height, width, 3 if content else 2, heads, dim, requires_grad=True)
    if not positions:
        return (projected,)
    return projected, *(torch.randn(sets, kernel_size, dim // 2, requires_grad=True) for _ in range(2))


def outputs_and_gradients(inputs, gradient, **options):
    output = local_attention(*inputs, **options)
    return output, *torch.autograd.grad(output, inputs, gradient)


@needs_numba
@pytest.mark.parametrize("border", ["mask", "zeros"])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2, 5, 9, 2, 6, 7), {}),  # less than a vector in a row
        ((2, 3, 37, 3, 8, 3), {"sets": 3}),  # more than two vectors in a row
        ((1, 13, 17, 1, 10, 4), {}),  # an even window
        ((2, 4, 6, 2, 5, 3), {"positions": False}),  # an odd number of channels
        ((3, 4, 17, 1, 4, 2), {"content": False}),
        ((19, 3, 5, 2, 2, 5), {}),  # sixteen images side by side, and three more
        ((40, 2, 2, 2, 16, 7), {"sets": 2}),  # windows far larger than the image
        ((17, 1, 1, 2, 6, 7), {}),
        ((33, 7, 3, 1, 4, 3), {"content": False}),
        ((1, 2, 21, 1, 6, 19), {}),  # a window wider than a vector
        ((17, 5, 3, 2, 10, 4), {"sets": 2}),  # an even window over images
        ((1, 31, 1, 5, 2, 6), {}),
    ],
)
def test_values_and_gradients_are_the_equation_s(border, sizes, options):
    inputs, kernel_size = arguments(*sizes, **options), sizes[-1]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    projected, *embeddings = exact_inputs
    exact = equation(*query_key_value(projected), *embeddings, kernel_size=kernel_size, border=border)
    gradient = torch.randn(exact.shape)
    wanted = (exact, *torch.autograd.grad(exact, exact_inputs, gradient.double()))
    found = outputs_and_gradients(inputs, gradient, kernel_size=kernel_size, border=border, backend="numba")
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=2e-5)


@needs_numba
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("sizes", [(2, 5, 9, 2, 6, 7), (19, 3, 5, 2, 2, 5)])
def test_strided_queries_are_the_equation_s(sizes, stride):
    inputs, options = arguments(*sizes), {"kernel_size": sizes[-1], "stride": stride}
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    exact = local_attention(*exact_inputs, **options, backend="reference")
    gradient = torch.randn(exact.shape)
    wanted = (exact, *torch.autograd.grad(exact, exact_inputs, gradient.double()))
    assert str(explain_local_attention(*inputs, **options)[1]) == "numba: runs"
    for got, right in zip(outputs_and_gradients(inputs, gradient, **options), wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=2e-5)


@needs_numba
def test_lanes_are_pixels_of_a_row_or_images_by_what_is_less_work():
    few_large, many_small = torch.empty(4, 56, 56, 3, 8, 8), torch.empty(128, 4, 4, 3, 8, 4)
    assert not backend._plan(few_large, 7, True).by_image
    assert backend._plan(many_small, 7, True).by_image


@needs_numba
@pytest.mark.parametrize("sizes", [(3, 6, 20, 2, 4, 5), (37, 3, 4, 2, 4, 5)])
def test_threads_and_repetition_change_no_bit(sizes, monkeypatch):
    inputs, kernel_size = arguments(*sizes), sizes[-1]
    gradient = torch.randn(*sizes[:5])
    runs = []
    for threads in (1, 1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        runs.append(outputs_and_gradients(inputs, gradient, kernel_size=kernel_size, backend="numba"))
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))


@needs_numba
def test_every_result_is_written(monkeypatch):
    """Fresh memory is full of NaN here: what is not written would show."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    for sizes in ((2, 5, 9, 2, 6, 7), (20, 2, 3, 2, 4, 3)):
        inputs = arguments(*sizes)
        found = outputs_and_gradients(inputs, torch.randn(*sizes[:5]), kernel_size=sizes[-1], backend="numba")
        assert all(torch.isfinite(one).all() for one in found)


@needs_numba
def test_a_pixel_that_is_not_a_number_reaches_its_windows_alone():
    projected = torch.randn(1, 9, 20, 3, 1, 4)
    projected[0, 4, 10] = float("nan")
    found = local_attention(projected, kernel_size=3, backend="numba")
    touched = torch.isnan(found[0, ..., 0, 0])
    assert touched.sum() == 9
    assert touched[3:6, 9:12].all()


@needs_numba
def test_large_logits_overflow_nothing():
    inputs = [x.detach() for x in arguments(1, 5, 7, 1, 4, 3)]
    inputs[0] *= 100
    projected, *embeddings = (x.double() for x in inputs)
    exact = equation(*query_key_value(projected), *embeddings, kernel_size=3)
    found = local_attention(*inputs, kernel_size=3, backend="numba")
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-2)


@needs_numba
def test_threads_of_another_library_give_the_same_bits(monkeypatch):
    """Where torch's OpenMP is not GNU's, Python's threads do the work."""
    inputs = arguments(3, 6, 20, 2, 4, 5)
    gradient = torch.randn(3, 6, 20, 2, 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    usual = outputs_and_gradients(inputs, gradient, kernel_size=5, backend="numba")
    names = []

    def submit(pool, call, *rest):
        names.append(pool._thread_name_prefix)
        return plain(pool, call, *rest)

    plain = torch_threads.ThreadPoolExecutor.submit
    monkeypatch.setattr(torch_threads.ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(torch_threads, "_team", lambda: None)
    others = outputs_and_gradients(inputs, gradient, kernel_size=5, backend="numba")
    assert names == ["nearsight-kernels"] * 2  # one more thread forward, and one backward
    assert all(torch.equal(one, other) for one, other in zip(usual, others, strict=True))


@needs_numba
def test_fewer_threads_than_asked_for_do_all_the_work():
    """OMP_THREAD_LIMIT, OMP_DYNAMIC and parallel regions within others make teams smaller."""
    code = (
        "import torch; from nearsight.kernels import local_attention as f; torch.set_num_threads(2); "
        "x, row, col = torch.randn(3, 6, 20, 3, 2, 4), torch.randn(1, 5, 2), torch.randn(1, 5, 2); "
        "assert torch.get_num_threads() == 2; "
        "found = [f(x, row, col, kernel_size=5, backend=name) for name in ('numba', 'reference')]; "
        "torch.testing.assert_close(*found)"
    )
    limits = {"OMP_NUM_THREADS": "2", "OMP_THREAD_LIMIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **limits}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


@needs_numba
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(2, 5, 7, 2, 6, 4), (17, 3, 5, 1, 10, 3)])
def test_half_precision_is_rounded_once(sizes, dtype):
    """Arithmetic is float32's: a result is as near to the exact one as its type can say."""
    inputs = tuple(x.detach().to(dtype).requires_grad_() for x in arguments(*sizes))
    gradient = torch.randn(sizes[:5]).to(dtype)
    found = outputs_and_gradients(inputs, gradient, kernel_size=sizes[-1], backend="numba")
    exact_inputs = tuple(x.detach().double().requires_grad_() for x in inputs)
    projected, *embeddings = exact_inputs
    exact = equation(*query_key_value(projected), *embeddings, kernel_size=sizes[-1])
    wanted = (exact, *torch.autograd.grad(exact, exact_inputs, gradient.double()))
    for got, right in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), right, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-5)


@needs_numba
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised inside the check itself
def test_the_operator_passes_torch_s_own_checks():
    inputs = arguments(2, 3, 5, 1, 2, 3)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.nearsight.local_attention_numba.default, (*inputs, 3, True), test_utils=checks)


@needs_numba
def test_what_it_cannot_do_it_says():
    verdict = {
        one.backend: str(one) for one in explain_local_attention(torch.randn(1, 5, 5, 3, 1, 4).double(), kernel_size=3)
    }
    assert "float64" in verdict["numba"]
    assert verdict["cpu"] == "cpu: runs"


def test_without_numba_the_tiles_run():
    code = """
import sys
sys.modules["numba"] = None  # as if it were not installed
import torch
from nearsight.kernels import explain_local_attention, local_attention
x = torch.randn(1, 5, 7, 3, 2, 4)
said = {one.backend: str(one) for one in explain_local_attention(x, kernel_size=3)}
assert "numba cannot be loaded" in said["numba"], said
assert said["cpu"] == "cpu: runs", said
exact = local_attention(x, kernel_size=3, backend="reference")
torch.testing.assert_close(local_attention(x, kernel_size=3), exact)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_numba
def test_without_a_folder_for_its_cache_it_compiles_anew():
    code = """
from numba.core import caching
caching.CacheImpl._locator_classes = []  # nowhere to write
import torch
from nearsight.kernels import local_attention
x = torch.randn(1, 5, 7, 3, 2, 4)
exact = local_attention(x, kernel_size=3, backend="reference")
torch.testing.assert_close(local_attention(x, kernel_size=3, backend="numba"), exact)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_numba
def test_a_change_of_any_source_is_compiled_anew(tmp_path):
    """numba itself looks at one file: a cache of earlier sources would go on being loaded."""
    code = """
import sys
from nearsight.kernels import numba_entries
if len(sys.argv) > 1:
    numba_entries.edition = lambda: int(sys.argv[1])
print(numba_entries.compiled("forward").cache_hits)
"""

    def hits(*edition):
        command = [sys.executable, "-c", code, *edition]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert [hits(), hits(), hits("5"), hits("5"), hits()] == [0, 1, 0, 1, 1]


@needs_numba
def test_every_source_of_the_loops_is_in_their_edition():
    folder = Path(numba_entries.__file__).parent
    written = {folder / name for name in numba_entries.SOURCES}
    imported = {
        Path(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith("nearsight.kernels.") and (".numba_" in name or name.endswith(".sizes"))
    }
    assert {path.resolve() for path in written} == {path.resolve() for path in imported}
