"""Attention among all tokens by compiled loops: the float64 equation, whatever the sizes, threads and memory."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from nearsight.functional import attention as equations
from nearsight.kernels import (
    compiled_loops,
    explain_gated_positional_attention,
    gated_positional_attention,
    token_attention,
    tokens,
)

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
SIZES = [
    (1, (7, 1), 2, 3, True),  # less than a vector of queries, an odd number of channels
    (3, (17, 1), 3, 12, True),  # one query more than a vector
    (18, (1, 5), 2, 20, True),  # shares of one image and of two; channels beyond a vector
    (33, (3, 5), 1, 1, True),
    (2, (5, 7), 2, 6, True),
    (20, (4, 4), 4, 4, False),  # a block of SASA's stem
    (2, (13, 5), 2, 48, False),
]


def equation(qkv, amount, by_row, by_col, scale):
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    weights = (scale * query @ key.transpose(-1, -2)).softmax(dim=-1)
    if amount is not None:
        weights = amount[:, None, None] * weights + tokens.outer_product(by_row, by_col)
    return (weights @ value).transpose(1, 2)


def arguments(batch, grid_size, heads, dim, positions):
    height, width = grid_size
    qkv = torch.randn(batch, height * width, 3, heads, dim)
    rest = (torch.rand(heads), torch.rand(heads, height, height), torch.rand(heads, width, width)) if positions else ()
    return [x.requires_grad_() for x in (qkv, *rest)]


def incoming(sizes):
    batch, (height, width), heads, dim, _ = sizes
    return torch.randn(batch, height * width, heads, dim)


def outputs_and_gradients(function, inputs, gradient):
    output = function(*(inputs if len(inputs) == 4 else (*inputs, None, None, None)))
    return output, *torch.autograd.grad(output, inputs, gradient)


def attend(qkv, amount, by_row, by_col):
    return token_attention(qkv, amount, None if by_row is None else (by_row, by_col), scale=0.7)


def by_loops(*inputs):
    assert tokens.refusal(inputs[0]) is None
    return attend(*inputs)


def exact(inputs, gradient):
    inputs = [x.detach().double().requires_grad_() for x in inputs]
    return outputs_and_gradients(lambda *given: equation(*given, 0.7), inputs, gradient.double())


@needs_numba
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_the_equation_s(sizes):
    inputs = arguments(*sizes)
    gradient = incoming(sizes)
    found = outputs_and_gradients(by_loops, inputs, gradient)
    for got, right in zip(found, exact(inputs, gradient), strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=2e-5)


@needs_numba
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    sizes = (3, (1, 17), 3, 12, True)
    inputs = [x.detach().to(dtype).requires_grad_() for x in arguments(*sizes)]
    gradient = incoming(sizes).to(dtype)
    found = outputs_and_gradients(by_loops, inputs, gradient)
    for got, right in zip(found, exact(inputs, gradient), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), right, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-5)


@needs_numba
@pytest.mark.parametrize("sizes", [(3, (1, 17), 3, 12, True), (37, (3, 3), 2, 4, True)])
def test_threads_and_repetition_change_no_bit(sizes, monkeypatch):
    inputs, gradient = arguments(*sizes), incoming(sizes)
    runs = []
    for threads in (1, 1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        runs.append(outputs_and_gradients(by_loops, inputs, gradient))
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))


@needs_numba
def test_every_result_is_written(monkeypatch):
    """Fresh memory is full of NaN here: what is not written would show."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    for sizes in SIZES:
        found = outputs_and_gradients(by_loops, arguments(*sizes), incoming(sizes))
        assert all(torch.isfinite(one).all() for one in found)


@needs_numba
def test_large_logits_overflow_nothing():
    inputs = arguments(2, (1, 5), 1, 4, False)
    with torch.no_grad():
        inputs[0].mul_(50)
    gradient = torch.randn(2, 5, 1, 4)
    for got, right in zip(outputs_and_gradients(by_loops, inputs, gradient), exact(inputs, gradient), strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-3, atol=1e-2)


@needs_numba
def test_what_is_not_a_number_stays_in_its_image_and_head():
    qkv = torch.randn(2, 7, 3, 2, 4)
    qkv[1, 3, 1, 1] = float("nan")
    found = torch.isnan(token_attention(qkv))
    assert found[1, :, 1].all()
    assert found.sum() == 7 * 4


@needs_numba
@pytest.mark.parametrize("grid_size", [(3, 5), (7, 2), (1, 1)])
def test_gated_attention_is_the_equation_s(grid_size):
    heads, dim = 3, 5
    qkv = torch.randn(2, grid_size[0] * grid_size[1], 3, heads, dim)
    inputs = [x.requires_grad_() for x in (qkv, torch.randn(heads, 3) / 3, torch.zeros(heads), torch.randn(heads))]
    said = " ".join(str(one) for one in explain_gated_positional_attention(*inputs, grid_size=grid_size))
    assert "numba: could run, but making P for fewer than 4 images" in said
    inputs[0] = torch.randn(4, *inputs[0].shape[1:], requires_grad=True)
    said = " ".join(str(one) for one in explain_gated_positional_attention(*inputs, grid_size=grid_size))
    assert "numba: runs" in said
    found = gated_positional_attention(*inputs, grid_size=grid_size, backend="numba")
    gradient = torch.randn(found.shape)
    grads = torch.autograd.grad(found, inputs, gradient)
    right_inputs = [x.detach().double().requires_grad_() for x in inputs]
    query, key, value = right_inputs[0].permute(2, 0, 3, 1, 4).unbind(0)
    right = equations.gated_positional_attention(
        query, key, value, right_inputs[1], right_inputs[3], grid_size=grid_size, scale=None
    )
    wanted = torch.autograd.grad(right, right_inputs, gradient.double(), allow_unused=True)
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=2e-5)
    for got, one in zip(grads, wanted, strict=True):
        torch.testing.assert_close(got.double(), torch.zeros_like(got).double() if one is None else one, atol=3e-5,
                                   rtol=1e-5)  # fmt: skip


@needs_numba
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised inside the check itself
@pytest.mark.parametrize("positions", [True, False])
def test_the_operator_passes_torch_s_own_checks(positions):
    inputs = arguments(2, (5, 1), 2, 3, positions)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = (*inputs, 0.5) if positions else (*inputs, None, None, None, 0.5)
    torch.library.opcheck(torch.ops.nearsight.token_attention.default, given, test_utils=checks)


@pytest.mark.parametrize(
    ("qkv", "reason"),
    [
        (torch.empty(1, 257, 3, 1, 4), "257 tokens are more than 256"),
        (torch.empty(1, 4, 3, 1, 4, dtype=torch.float64), "float64"),
        (torch.empty(0, 4, 3, 1, 4), "nothing to compute"),
        (torch.empty(1, 4, 3, 1, 4, device="meta"), "on meta"),
    ],
)
def test_what_it_cannot_do_it_says(qkv, reason):
    assert reason in tokens.refusal(qkv)


@pytest.mark.parametrize("positions", [True, False])
def test_where_loops_cannot_run_torch_s_attention_does(positions, monkeypatch):
    monkeypatch.setattr(tokens, "loading_trouble", lambda: "numba cannot be loaded")
    monkeypatch.setattr(compiled_loops, "run", None)
    inputs = arguments(3, (7, 1), 2, 4, positions)
    gradient = torch.randn(3, 7, 2, 4)
    found = outputs_and_gradients(attend, inputs, gradient)
    for got, right in zip(found, exact(inputs, gradient), strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=2e-5)


def test_models_work_without_numba():
    code = """
import sys
sys.modules["numba"] = None  # as if it were not installed
import torch
import nearsight
images = torch.randn(2, 3, 32, 32)
models = [nearsight.create_model(name, num_classes=3).eval() for name in ("convit_nano_32", "sasa_resnet26")]
plain = [model(images) for model in models]
for model, right in zip(models, plain):
    torch.testing.assert_close(nearsight.accelerate(model)(images), right, rtol=1e-3, atol=1e-4)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_torchs_default_type_is_no_matter(default):
    qkv = torch.randn(4, 21, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    expected = tokens.token_attention(qkv)
    torch.set_default_dtype(default)
    try:
        assert torch.equal(tokens.token_attention(qkv), expected)
    finally:
        torch.set_default_dtype(torch.float32)
