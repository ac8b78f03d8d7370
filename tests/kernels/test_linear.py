"""Linear layers by oneDNN: the same numbers, no copies, and only where they are faster."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from watching_operators import Watching

from nearsight.kernels import explain_linear, linear, linear_layer

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

SHAPES = {  # of the input; of one image torch takes oneDNN from 20 480 numbers on
    "rows": (611, 48),
    "tokens": (17, 13, 24),
    "pixels": (17, 5, 7, 24),
    "one token": (431, 1, 48),
    "one image": (1, 457, 48),
}


@pytest.fixture(autouse=True)
def two_threads():
    """With one, torch would convolve few images by MKL."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def another_processor(monkeypatch):
    """One whose vectors MKL does not use."""
    monkeypatch.setattr(linear_layer, "_processor_reservation", lambda: None)


def arguments(shape, outputs=31, bias=True):
    tensors = [torch.randn(shape), torch.randn(outputs, shape[-1]), *([torch.randn(outputs)] * bias)]
    return [tensor.requires_grad_() for tensor in tensors]


def by_convolution(*tensors):
    return linear(*tensors, backend="onednn")


def results(function, tensors, gradient, dtype=torch.float32):
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, gradient.to(dtype))]


def assert_as_exact_as_torch(function, tensors):
    gradient = torch.randn(*tensors[0].shape[:-1], len(tensors[1]))
    ours, theirs = (results(one, tensors, gradient) for one in (function, F.linear))
    for one, other, exact in zip(ours, theirs, results(F.linear, tensors, gradient, torch.float64), strict=True):
        assert one.shape == exact.shape
        of_bias = one.dim() == 1  # whose gradient oneDNN adds up one by one, and torch pairwise
        assert (one - exact).norm() <= 2 * (other - exact).norm() + (1e-6 if of_bias else 1e-7) * exact.norm()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_is_as_exact_as_torch_s_own(shape, bias):
    assert_as_exact_as_torch(by_convolution, arguments(shape, bias=bias))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_compiled_it_is_one_operator_each_way(shape):
    seen = []

    def keep(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    torch.compile(by_convolution, fullgraph=True, backend=keep)(*arguments(shape))
    assert [name for name in seen if "nearsight.linear" in name]
    torch.compiler.reset()
    assert_as_exact_as_torch(torch.compile(by_convolution, fullgraph=True, backend="aot_eager"), arguments(shape))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_inductor_meets_what_the_operator_says_of_its_result(shape):
    torch.compiler.reset()
    assert_as_exact_as_torch(torch.compile(by_convolution, fullgraph=True), arguments(shape))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised inside the check itself
@pytest.mark.parametrize("bias", [True, False])
def test_operators_pass_torch_s_own_checks(bias):
    tensors = arguments((17, 3, 8), bias=bias)
    torch.library.opcheck(torch.ops.nearsight.linear.default, (*tensors, *[None] * (not bias)))


@pytest.mark.parametrize("shape", [SHAPES["tokens"], SHAPES["pixels"]])
def test_nothing_is_copied(shape):
    tensors = [tensor.detach() for tensor in arguments(shape)]
    with Watching() as watching:
        out = by_convolution(*tensors)
    assert out.is_contiguous()
    assert not [name for name in watching.seen if "clone" in name or "copy" in name], watching.seen


def test_inputs_that_do_not_lie_densely_are_the_same_to_it():
    x, weight = torch.randn(17, 24, 13).mT, torch.randn(31, 1).expand(31, 24)
    torch.testing.assert_close(by_convolution(x, weight), F.linear(x, weight))


def outcome(function, *tensors):
    """The shape of a result, or the words of torch's own error."""
    try:
        return function(*tensors).shape
    except RuntimeError as error:
        return str(error)


class Marked(torch.Tensor):
    """A tensor of a kind of its own."""


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (torch.zeros(2, 3, 8).double(), torch.zeros(4, 8).double(), "float64; float32 is needed"),
        (torch.zeros(2, 3, 8, device="meta"), torch.zeros(4, 8, device="meta"), "on meta, not on a CPU"),
        (torch.zeros(0, 3, 8), torch.zeros(4, 8), "no rows to compute"),
        (torch.zeros(8), torch.zeros(4, 8), "no rows to compute"),
        (torch.zeros(2, 3, 8), torch.zeros(4, 9), r"x of shape (2, 3, 8) does not fit a weight of shape (4, 9)"),
        (torch.zeros(2, 3, 8), torch.zeros(8), r"does not fit a weight of shape (8,)"),
        (torch.zeros(2, 3, 8), torch.zeros(4, 8).to_sparse(), "a kind of its own"),
        (torch.zeros(2, 3, 8).as_subclass(Marked), torch.zeros(4, 8), "a kind of its own"),
    ],
)
def test_what_it_is_not_for_is_refused_and_left_to_torch(another_processor, x, weight, reason):
    onednn, torchs = explain_linear(x, weight)
    assert reason in str(onednn)
    assert torchs.chosen
    assert outcome(linear, x, weight) == outcome(F.linear, x, weight)
    with pytest.raises(ValueError, match="'onednn' cannot run here"):
        linear(x, weight, backend="onednn")


def test_autocast_and_a_switched_off_library_are_heeded(another_processor, monkeypatch):
    x, weight, bias = arguments((2, 3, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast is on" in str(explain_linear(x, weight, bias)[0])
        assert linear(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert "switched off" in str(explain_linear(x, weight, bias)[0])


@pytest.mark.parametrize(
    ("capability", "processor", "expected"),
    [
        ("AVX512", "vendor_id : AuthenticAMD", "onednn: runs"),
        ("AVX512", "vendor_id : GenuineIntel", "onednn: could run, but MKL uses the whole vectors"),
        ("AVX2", "vendor_id : AuthenticAMD", "onednn: could run, but the processor has no 512-bit vectors"),
    ],
)
def test_the_processor_decides(monkeypatch, capability, processor, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(linear_layer, "processor_listing", lambda: processor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert str(explain_linear(torch.zeros(2, 128, 256), torch.zeros(256, 256))[0]).startswith(expected)


@pytest.mark.parametrize(
    ("rows", "channels", "said"),
    [
        (256, 256, "runs"),
        (255, 4096, "fewer than 256 rows are too little work"),
        (256, 255, "fewer than 16777216 multiply-adds are too little work"),
    ],
)
def test_little_work_is_left_to_torch(another_processor, rows, channels, said):
    assert said in str(explain_linear(torch.zeros(1, rows, channels), torch.zeros(256, channels))[0])


def test_one_thread_and_few_images_are_left_to_torch(another_processor, monkeypatch):
    monkeypatch.setattr(linear_layer, "_num_threads", lambda: 1)
    few, many = (explain_linear(torch.zeros(images, 64, 256), torch.zeros(256, 256))[0] for images in (15, 16))
    assert "with one thread" in str(few)
    assert many.chosen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_torch_takes_onednn_for_it(shape):
    x, weight, bias = (tensor.detach() for tensor in arguments(shape))
    sizes = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)  # stride, padding, dilation, …
    chosen = torch._C._select_conv_backend(linear_layer._maps(x), linear_layer._kernel(weight), bias, *sizes, None)
    assert "Mkldnn" in str(chosen)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward derivatives use it
def test_compiled_forward_derivatives_are_not_lost(another_processor, backend):
    x, weight, bias = (tensor.detach() for tensor in arguments((17, 64, 128), outputs=128))
    direction = torch.randn_like(x)

    def tangent(x, direction):
        return torch.func.jvp(lambda x: linear(x, weight, bias), (x,), (direction,))[1]

    assert explain_linear(x, weight, bias)[0].chosen
    torch.compiler.reset()
    found = torch.compile(tangent, fullgraph=True, backend=backend)(x, direction)
    torch.testing.assert_close(found, F.linear(direction, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [(0,), (1, 2), (2,)])
def test_the_operator_computes_needed_gradients_only(frozen):
    tensors = arguments(SHAPES["tokens"])
    for index in frozen:
        tensors[index].requires_grad_(False)
    learning = [tensor for tensor in tensors if tensor.requires_grad]
    with FlopCounterMode(display=False) as counter:
        found = torch.autograd.grad(torch.ops.nearsight.linear(*tensors).square().sum(), learning)
    products = 1 + tensors[0].requires_grad + tensors[1].requires_grad
    assert counter.get_total_flops() == products * 2 * tensors[0].numel() * len(tensors[1])
    torch.testing.assert_close(
        found, torch.autograd.grad(F.linear(*tensors).square().sum(), learning), rtol=1e-4, atol=1e-4
    )


def test_its_arithmetic_is_counted_whichever_way_it_is_called():
    x, weight, bias = arguments((17, 5, 8))
    for function in (by_convolution, torch.ops.nearsight.linear):
        with FlopCounterMode(display=False) as counter:
            function(x, weight, bias).sum().backward()
        assert counter.get_total_flops() == 3 * 2 * 17 * 5 * 8 * 31
