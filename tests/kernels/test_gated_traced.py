"""What torch.compile makes of GPSA's operators: launches of their kernels, without a copy of what these write.

Nothing is launched: tensors are fake and on the CPU, and the kernels are analysed for a GPU that need not be there.
"""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton")

from functorch.compile import aot_function, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core
from torch._library.triton import get_triton_kernels_for_op
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from nearsight.kernels import gated, triton_launch

GRID, HEADS = (3, 7), 2
COPYING = {"clone", "copy", "copy_", "select_scatter", "slice_scatter", "as_strided_scatter"}
# The launches of a graph, each with the arguments that its kernel writes.
WEIGHTS = ("make_weights", ["weights", "share"])
WEIGHTS_BACKWARD = (
    ("_weight_gradient", ["partial"]), ("weights_backward", ["partial"]), ("sum_partials", ["grad_v_pos", "grad_gate"]),
)  # fmt: skip
JOINT = (
    [WEIGHTS, ("over_tiles", ["output", "log_sum"])],
    [("by_rows", ["grad_qkv", "delta", "share_part"]), ("by_columns", ["grad_qkv"]), *WEIGHTS_BACKWARD],
)
FUSED = ([WEIGHTS, ("_mix", ["output"])], [("_mix", ["output", "other", "partial"]), *WEIGHTS_BACKWARD])


@pytest.fixture
def no_gpu(monkeypatch):
    """Kernels are analysed for a GPU that is not there."""
    target = GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: target))


def traced(backend) -> list[torch.fx.Graph]:
    """Forward and backward as inductor gets them."""
    graphs: list[torch.fx.Graph] = []

    def keep(graph_module, _):
        graphs.append(graph_module.graph)
        return make_boxed_func(graph_module)

    def joined_heads(*inputs):
        return backend(*inputs, grid_size=GRID).transpose(1, 2).flatten(2)

    with FakeTensorMode():
        qkv = torch.empty(2, GRID[0] * GRID[1], 3, HEADS, 48, dtype=torch.bfloat16, requires_grad=True)
        parameters = [torch.empty(*shape, requires_grad=True) for shape in ((HEADS, 3), (HEADS,), (HEADS,))]
        aot_function(joined_heads, fw_compiler=keep, bw_compiler=keep)(qkv, *parameters).sum().backward()
    return graphs


def launches(graph) -> list[tuple[str, list[str]]]:
    """Of a graph, the kernels and those of their arguments that are copied before they write them."""
    nodes = graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    kernels = [kernel_side_table.get_kernel(node.kwargs["kernel_idx"]) for node in nodes]
    names = [getattr(kernel, "fn", kernel).__name__ for kernel in kernels]
    return [(name, node.kwargs["tensors_to_clone"]) for name, node in zip(names, nodes, strict=True)]


@pytest.mark.parametrize(("backend", "expected"), [(gated._joint, JOINT), (gated._fused, FUSED)])
def test_torch_compile_sees_launches_and_no_copies(no_gpu, backend, expected):
    for graph, wanted in zip(traced(backend), expected, strict=True):
        assert launches(graph) == wanted
        assert not COPYING & {str(getattr(node.target, "overloadpacket", "")).split(".")[-1] for node in graph.nodes}
        reinplace_inplaceable_ops_core(graph)
        assert launches(graph) == [(name, []) for name, _ in wanted]


def graphs_of(
    *calls: tuple[int, tuple[int, int]], to_kernels: bool, backend=gated._joint
) -> list[torch.fx.GraphModule]:
    """What torch.compile makes of one function for these batches and grids: dynamo's graphs, or those `to_kernels`."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph_module, _):
        graphs.append(graph_module)
        return make_boxed_func(zeros) if to_kernels else zeros

    def zeros(*inputs):
        qkv = next(one for one in inputs if isinstance(one, torch.Tensor) and one.dim() == 5)
        return (qkv.new_zeros(qkv.shape[0], HEADS, qkv.shape[1], 48),)

    torch._dynamo.reset()
    compiler = aot_autograd(fw_compiler=keep) if to_kernels else keep
    function = torch.compile(backend, backend=compiler, fullgraph=True)
    with torch.no_grad():
        for batch, grid in calls:
            qkv = torch.randn(batch, grid[0] * grid[1], 3, HEADS, 48, dtype=torch.bfloat16)
            function(qkv, torch.randn(HEADS, 3), torch.randn(HEADS), torch.randn(HEADS), grid_size=grid)
    return graphs


def test_one_graph_does_for_many_batches(no_gpu):
    calls = [(batch, GRID) for batch in (2, 3, 4, 5)]
    assert len(graphs_of(*calls, to_kernels=True)) == 2  # one for the first, one for all others


@pytest.mark.parametrize("backend", [gated._joint, gated._fused])
def test_only_the_batch_is_symbolic(backend):
    """Where grids change from call to call torch.compile makes them symbolic; inductor would fail on what is padded."""
    graphs = graphs_of((2, GRID), (3, (5, 4)), (4, (4, 11)), to_kernels=False, backend=backend)
    for graph in (graph_module.graph for graph_module in graphs):
        (weights,) = graph.find_nodes(op="call_function", target=torch.ops.nearsight.gated_weights)
        (returned,) = graph.output_node().args[0]
        sizes = (*weights.meta["example_value"][0].shape, *returned.meta["example_value"].shape[1:])
        assert all(isinstance(size, int) for size in sizes)


def test_a_graph_names_the_edition_of_its_kernels():
    """torch's caches on disk know it by that: what the backward pass launches is not in what they look at."""
    (graph_module,) = graphs_of((2, GRID), to_kernels=False)
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.nearsight.gated_weights)
    assert node.args[-1] == triton_launch.EDITION


def test_torch_knows_the_kernels_of_an_operator():
    """It puts the source of those that a forward pass launches into its caches' keys."""
    expected = {
        "gated_weights": {"make_weights"},
        "gated_weights_backward": {"weights_backward", "sum_partials"},
        "attend_gated": {"over_tiles"},
        "attend_gated_backward": {"by_rows", "by_columns", "_weight_gradient"},
        "mix_positions": {"_mix"},
        "mix_positions_backward": {"_mix", "_weight_gradient"},
    }
    for operator, kernels in expected.items():
        assert {kernel.__name__ for kernel in get_triton_kernels_for_op(f"nearsight::{operator}")} == kernels
