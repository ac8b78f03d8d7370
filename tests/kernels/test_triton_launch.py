"""Which way a call of an operator goes: straight to its function, through autograd, or torch's."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from watching_operators import Watching

from nearsight.kernels.local.table_kernels import table_kernel
from nearsight.kernels.triton_launch import Operator, wrap_triton


@Operator
def cubes_for_a_test(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return x**3 * factor, x + 1


@cubes_for_a_test.register_fake
def _(x, factor):
    return torch.empty_like(x), torch.empty_like(x)


@Operator
def cubes_backward_for_a_test(gradient: Tensor, x: Tensor, factor: float) -> Tensor:
    return gradient * 3 * x.square() * factor


@cubes_backward_for_a_test.register_fake
def _(gradient, x, factor):
    return torch.empty_like(x)


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, gradient, _):
    return cubes_backward_for_a_test(gradient, *ctx.saved_tensors, ctx.factor), None


cubes_for_a_test.register_autograd(_backward, setup_context=_setup_context)


@pytest.fixture
def torchs_way(monkeypatch):
    """The operators that went it."""
    taken = []
    for operator in (cubes_for_a_test, cubes_backward_for_a_test):
        registered, name = operator.registered, operator.function.__name__
        call = lambda *arguments, run=registered, name=name: taken.append(name) or run(*arguments)  # noqa: E731
        monkeypatch.setattr(operator, "registered", call)
    return taken


def derivative(x: Tensor) -> Tensor:
    return torch.autograd.grad(cubes_for_a_test(x, 2.0)[0].sum(), x)[0]


def test_nothing_stands_between_a_plain_call_and_its_function(torchs_way):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with torch.no_grad():
        assert cubes_for_a_test(x, 2.0)[0].tolist() == [2.0, 16.0]
    cubes, more = cubes_for_a_test(x, 2.0)
    assert cubes.requires_grad
    assert not more.requires_grad
    assert derivative(x).tolist() == [6.0, 24.0]
    assert torchs_way == []


def test_who_intercepts_operators_meets_them(torchs_way):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with Watching() as watching:
        assert derivative(x).tolist() == [6.0, 24.0]
    assert torchs_way == ["cubes_for_a_test", "cubes_backward_for_a_test"]
    assert {"nearsight.cubes_for_a_test.default", "nearsight.cubes_backward_for_a_test.default"} <= set(watching.seen)


def test_tensors_of_other_kinds_go_torchs_way(torchs_way):
    class Kind(Tensor):
        pass

    cubes_for_a_test(torch.ones(2).as_subclass(Kind), 2.0)
    assert torchs_way == ["cubes_for_a_test"]


def test_what_kernels_cannot_read_goes_torchs_way(torchs_way):
    x = torch.tensor([1.0, 2.0])
    assert cubes_for_a_test(torch._neg_view(x), 2.0)[0].tolist() == [-2.0, -16.0]
    assert torchs_way == ["cubes_for_a_test"]


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
def test_gradients_of_several_outputs_at_once(torchs_way):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    cubes = cubes_for_a_test(x, 2.0)[0]
    (jacobian,) = torch.autograd.grad(cubes, x, torch.eye(2), is_grads_batched=True)
    assert jacobian.tolist() == [[6.0, 0.0], [0.0, 24.0]]
    assert torchs_way == ["cubes_backward_for_a_test"]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_traces_and_profiles_name_the_operator(torchs_way):
    x = torch.tensor([1.0, 2.0])
    assert "nearsight::cubes_for_a_test" in str(torch.jit.trace(lambda x: cubes_for_a_test(x, 2.0), x).graph)
    torchs_way.clear()
    with torch.autograd.profiler.profile() as profiled:
        cubes_for_a_test(x, 2.0)
    assert torchs_way == ["cubes_for_a_test"]
    assert "nearsight::cubes_for_a_test" in {event.name for event in profiled.function_events}


def test_kernels_are_wrapped_for_those_who_trace_alone():
    assert wrap_triton(table_kernel) is table_kernel
    with Watching():
        assert wrap_triton(table_kernel) is not table_kernel


def test_torch_compile_sees_the_operator():
    graphs = []

    def keep(graph_module, _):
        graphs.append(graph_module.graph)
        return graph_module

    torch.compiler.reset()
    compiled = torch.compile(lambda x: cubes_for_a_test(x, 2.0)[0], backend=keep, fullgraph=True)
    assert compiled(torch.tensor([2.0])).tolist() == [16.0]
    assert len(graphs[0].find_nodes(op="call_function", target=torch.ops.nearsight.cubes_for_a_test.default)) == 1


@pytest.mark.parametrize("watched", [False, True])
def test_a_second_derivative_is_an_error_either_way(watched):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with Watching() if watched else torch.enable_grad():
        cubes = cubes_for_a_test(x, 2.0)[0].sum()
        (once,) = torch.autograd.grad(cubes, x, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula"):
            once.sum().backward()
