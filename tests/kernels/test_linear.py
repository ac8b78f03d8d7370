"""Linear layers by oneDNN: the same numbers, no copies, and only where they are faster."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from watching import Watching

from nearsight.kernels import explain_linear, linear, linear_layer
from nearsight.nn import FeedForward, Linear

SHAPES = {  # of the input, with enough images or pixels for torch to take oneDNN even with one thread
    "rows": (611, 24),
    "tokens": (17, 13, 24),
    "pixels": (17, 5, 7, 24),
    "one token": (17, 1, 24),
    "one image": (1, 29, 24),
}


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
    """But for a few of float32's last bits: oneDNN adds a bias's gradient up one by one, torch pairwise."""
    gradient = torch.randn(*tensors[0].shape[:-1], len(tensors[1]))
    ours, theirs = (results(one, tensors, gradient) for one in (function, F.linear))
    for one, other, exact in zip(ours, theirs, results(F.linear, tensors, gradient, torch.float64), strict=True):
        assert one.shape == exact.shape
        assert (one - exact).norm() <= 2 * (other - exact).norm() + 1e-6 * exact.norm()


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

    torch._dynamo.reset()
    torch.compile(by_convolution, fullgraph=True, backend=keep)(*arguments(shape))
    assert [name for name in seen if "nearsight.linear" in name]
    torch._dynamo.reset()
    assert_as_exact_as_torch(torch.compile(by_convolution, fullgraph=True, backend="aot_eager"), arguments(shape))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_inductor_meets_what_the_operator_says_of_its_result(shape):
    torch._dynamo.reset()
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


class Marked(torch.Tensor):
    """A tensor of a kind of its own."""


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (torch.zeros(2, 3, 8).double(), torch.zeros(4, 8).double(), "float64; float32 is needed"),
        (torch.zeros(2, 3, 8, device="meta"), torch.zeros(4, 8, device="meta"), "on meta, not on a CPU"),
        (torch.zeros(0, 3, 8), torch.zeros(4, 8), "no rows to compute"),
        (torch.zeros(8), torch.zeros(4, 8), "no rows to compute"),
        (torch.zeros(2, 3, 8).as_subclass(Marked), torch.zeros(4, 8), "a kind of its own"),
    ],
)
def test_what_it_is_not_for_is_refused_and_left_to_torch(another_processor, x, weight, reason):
    onednn, torchs = explain_linear(x, weight)
    assert reason in str(onednn)
    assert torchs.chosen
    assert linear(x, weight).shape == F.linear(x, weight).shape
    with pytest.raises(ValueError, match="'onednn' cannot run here"):
        linear(x, weight, backend="onednn")


def test_autocast_and_a_switched_off_library_are_heeded(another_processor, monkeypatch):
    x, weight, bias = arguments((2, 3, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast is on" in str(explain_linear(x, weight, bias)[0])
        assert linear(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
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
    monkeypatch.setattr(linear_layer, "_processor", lambda: processor)
    monkeypatch.setattr(linear_layer, "SMALLEST", 1)
    assert str(explain_linear(torch.zeros(2, 3, 8), torch.zeros(4, 8))[0]).startswith(expected)


def test_little_work_is_left_to_torch(another_processor):
    weight = torch.zeros(256, 256)
    few, many = (explain_linear(torch.zeros(1, rows, 256), weight)[0] for rows in (255, 256))
    assert "too little work" in str(few)
    assert many.chosen


def test_layers_take_it_as_they_are_and_compiled_but_not_exported(another_processor, monkeypatch):
    monkeypatch.setattr(linear_layer, "SMALLEST", 1)
    layer, x = FeedForward(8, 12).eval(), torch.randn(17, 5, 8)
    with Watching() as watching:
        expected = layer(x)
    assert watching.seen.count("aten.convolution.default") == 2
    exported = torch.export.export(layer, (x,))
    assert not [node for node in exported.graph.nodes if "conv" in str(node.target) or "nearsight" in str(node.target)]
    torch.testing.assert_close(exported.module()(x), expected)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)


def test_a_layer_has_the_parameters_of_torch_s_own():
    ours, theirs = Linear(3, 5), torch.nn.Linear(3, 5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3)
    assert torch.equal(ours(x), theirs(x))


def test_its_arithmetic_is_counted_whichever_way_it_is_called():
    x, weight, bias = arguments((17, 5, 8))
    for function in (by_convolution, torch.ops.nearsight.linear):
        with FlopCounterMode(display=False) as counter:
            function(x, weight, bias).sum().backward()
        assert counter.get_total_flops() == 3 * 2 * 17 * 5 * 8 * 31
