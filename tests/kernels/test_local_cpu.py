"""Local attention by tiles on the CPU: the equation's values and gradients, without its memory."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from nearsight.functional.local import local_attention as equation
from nearsight.functional.local import query_key_value
from nearsight.kernels import local_attention
from nearsight.kernels.local import cpu


def arguments(height, width, heads, dim, kernel_size, *, sets=1, content=True, positions=True, dtype=torch.float64):
    projected = torch.randn(2, height, width, 3 if content else 2, heads, dim, dtype=dtype, requires_grad=True)
    if not positions:
        return (projected,)
    embeddings = (torch.randn(sets, kernel_size, dim // 2, dtype=dtype, requires_grad=True) for _ in range(2))
    return projected, *embeddings


def exact_values(projected, *embeddings, **options):
    return equation(*query_key_value(projected), *embeddings, **options)


@pytest.mark.parametrize("border", ["mask", "zeros"])
@pytest.mark.parametrize("kernel_size", [2, 3, 4, 7])
def test_gradients_are_right_to_the_second_difference(border, kernel_size):
    projected, *embeddings = arguments(5, 7, 1, 2, kernel_size)
    inputs = (projected[:1].detach().requires_grad_(), *embeddings)

    def run(*inputs):
        return local_attention(*inputs, kernel_size=kernel_size, border=border, backend="cpu")

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("border", ["mask", "zeros"])
@pytest.mark.parametrize(
    ("height", "width", "kernel_size", "options"),
    [
        (9, 11, 5, {"sets": 3}),
        (13, 6, 7, {"content": False}),
        (4, 17, 3, {"positions": False}),
        (1, 1, 7, {}),
        (3, 2, 11, {}),
    ],
)
def test_values_and_gradients_are_the_equation_s(border, height, width, kernel_size, options, monkeypatch):
    monkeypatch.setattr(cpu, "CHUNK_LOGITS", 1)  # a chunk for every row of tiles
    inputs = arguments(height, width, 3, 4, kernel_size, **options)
    ours = local_attention(*inputs, kernel_size=kernel_size, border=border, backend="cpu")
    exact = exact_values(*inputs, kernel_size=kernel_size, border=border)
    torch.testing.assert_close(ours, exact)
    gradient = torch.randn_like(exact)
    for got, wanted in zip(
        torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(exact, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_half_precision_is_computed_in_float32():
    inputs = arguments(5, 7, 2, 8, 3, dtype=torch.float32)
    halves = tuple(x.detach().to(torch.bfloat16) for x in inputs)
    exact = exact_values(*(x.double() for x in halves), kernel_size=3)
    ours = local_attention(*halves, kernel_size=3)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=1e-6)


def test_it_compiles_in_one_graph_and_exports_to_plain_operators():
    class Layer(torch.nn.Module):
        def forward(self, projected, row, col):
            return local_attention(projected, row, col, kernel_size=3)

    inputs = arguments(5, 7, 2, 4, 3, dtype=torch.float32)
    exact = exact_values(*inputs, kernel_size=3)
    graphs = []

    def keep(graph, example):
        graphs.append(graph)
        return graph.forward

    torch.compile(Layer(), fullgraph=True, backend=keep)(*inputs)
    assert [node for node in graphs[0].graph.nodes if "nearsight" in str(node.target)], "compiling lost the kernel"
    compiled = torch.compile(Layer(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), exact)
    gradient = torch.randn_like(exact)
    for got, wanted in zip(
        torch.autograd.grad(compiled(*inputs), inputs, gradient),
        torch.autograd.grad(exact, inputs, gradient),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(Layer(), inputs)
    assert not [node for node in exported.graph.nodes if "nearsight" in str(node.target)]
    torch.testing.assert_close(exported.module()(*inputs), exact)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised inside the check itself
def test_operators_pass_torch_s_own_checks():
    inputs = arguments(3, 5, 1, 2, 3)
    torch.library.opcheck(torch.ops.nearsight.local_attention_cpu.default, (*inputs, 3, True))


def test_its_arithmetic_is_counted():
    inputs = arguments(5, 7, 2, 4, 3)
    with FlopCounterMode(display=False) as counter:
        local_attention(*inputs, kernel_size=3)
    pixels, channels = 2 * 5 * 7, 2 * 4
    # q·k and a·v over nine keys, q·r over three rows and three columns with half the channels each.
    assert counter.get_total_flops() == 2 * pixels * channels * (9 + 9 + 3)


def test_autocast_reaches_neither_pass():
    inputs = arguments(5, 7, 2, 8, 3, dtype=torch.float32)
    halves = tuple(x.detach().to(torch.bfloat16).requires_grad_() for x in inputs)

    def run():
        out = local_attention(*halves, kernel_size=3)
        return out, *torch.autograd.grad(out.float().square().sum(), halves)

    plain = run()
    with torch.autocast("cpu", torch.bfloat16):
        for got, wanted in zip(run(), plain, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward derivatives use it
def test_forward_derivatives_and_gradients_of_torch_func_are_the_equation_s():
    inputs = tuple(x.detach() for x in arguments(3, 5, 2, 4, 3))
    directions = tuple(torch.randn_like(x) for x in inputs)

    def ours(*x):
        return local_attention(*x, kernel_size=3)

    def exact(*x):
        return exact_values(*x, kernel_size=3)

    derivatives = [torch.func.jvp(f, inputs, directions)[1] for f in (ours, exact)]
    torch.testing.assert_close(*derivatives)
    assert derivatives[1].abs().max() > 0
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, d) for x, d in zip(inputs, directions, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(ours(*duals)).tangent, derivatives[1])
    gradients = [torch.func.grad(lambda *x, f=f: f(*x).square().sum())(*inputs) for f in (ours, exact)]
    torch.testing.assert_close(*gradients)
