"""What torch.compile makes of the kernels' operators: launches of their kernels, without a copy of what these write.

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

from nearsight.kernels import triton_launch
from nearsight.kernels.gpsa import fused, joint
from nearsight.kernels.gpsa.layout import Positions
from nearsight.kernels.local import triton
from nearsight.kernels.local.window import Window

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
TABLE = ("table_kernel", ["table"])
TABLE_GRADIENT = (("table_gradient_kernel", ["partial"]), ("embedding_gradient_kernel", ["grad_row", "grad_col"]))
THREADS = (
    [TABLE, ("forward_kernel", ["output", "lse"])],
    [
        TABLE,
        ("backward_query_kernel", ["grad_projected", "delta", "sums"]),
        ("backward_key_value_kernel", ["grad_projected"]),
        *TABLE_GRADIENT,
    ],
)
DENSE = (
    [TABLE, ("dense_forward_kernel", ["output", "lse"])],
    [
        TABLE,
        ("dense_backward_query_kernel", ["grad_projected", "delta", "terms", "sums"]),
        ("dense_backward_key_value_kernel", ["grad_projected"]),
        *TABLE_GRADIENT,
    ],
)


@pytest.fixture
def no_gpu(monkeypatch):
    """Kernels are analysed for a GPU that is not there."""
    target = GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: target))


def traced(function, *shapes: tuple[int, ...]) -> list[torch.fx.Graph]:
    """Forward and backward as inductor gets them. The first argument is in half precision, as projections are."""
    graphs: list[torch.fx.Graph] = []

    def keep(graph_module, _):
        graphs.append(graph_module.graph)
        return make_boxed_func(graph_module)

    with FakeTensorMode():
        types = (torch.bfloat16, *[torch.float32] * (len(shapes) - 1))
        inputs = [torch.empty(*one, dtype=dtype, requires_grad=True) for one, dtype in zip(shapes, types, strict=True)]
        aot_function(function, fw_compiler=keep, bw_compiler=keep)(*inputs).sum().backward()
    return graphs


def traced_gated(backend) -> list[torch.fx.Graph]:
    def joined_heads(qkv, *parameters):
        return backend(qkv, Positions(*parameters, GRID)).transpose(1, 2).flatten(2)

    return traced(joined_heads, (2, GRID[0] * GRID[1], 3, HEADS, 48), (HEADS, 3), (HEADS,), (HEADS,))


def traced_local(head_dim: int) -> list[torch.fx.Graph]:
    def joined_heads(*inputs):
        return local(*inputs).flatten(3)

    return traced(joined_heads, (2, 5, 9, 3, HEADS, head_dim), *[(1, 7, head_dim // 2)] * 2)


def launches(graph) -> list[tuple[str, list[str]]]:
    """Of a graph, the kernels and those of their arguments that are copied before they write them."""
    nodes = graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    kernels = [kernel_side_table.get_kernel(node.kwargs["kernel_idx"]) for node in nodes]
    names = [getattr(kernel, "fn", kernel).__name__ for kernel in kernels]
    return [(name, node.kwargs["tensors_to_clone"]) for name, node in zip(names, nodes, strict=True)]


@pytest.mark.parametrize(
    ("trace", "which", "expected"),
    [
        (traced_gated, joint.run, JOINT),
        (traced_gated, fused.run, FUSED),
        (traced_local, 8, THREADS),
        (traced_local, 16, DENSE),
    ],
)
def test_torch_compile_sees_launches_and_no_copies(no_gpu, trace, which, expected):
    for graph, wanted in zip(trace(which), expected, strict=True):
        assert launches(graph) == wanted
        assert not COPYING & {str(getattr(node.target, "overloadpacket", "")).split(".")[-1] for node in graph.nodes}
        reinplace_inplaceable_ops_core(graph)
        assert launches(graph) == [(name, []) for name, _ in wanted]


def graphs_of(
    function, *calls: tuple[torch.Tensor, ...], to_kernels: bool = True, training: bool = False
) -> list[torch.fx.GraphModule]:
    """What torch.compile makes of a function for these calls: dynamo's graphs, or those `to_kernels`. None is run."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph_module, _):
        graphs.append(graph_module)
        outputs = graph_module.graph.output_node().args[0]

        def nothing(*inputs):
            return [1 if isinstance(one.meta.get("val"), torch.SymInt) else torch.zeros(1) for one in outputs]

        return make_boxed_func(nothing) if to_kernels else nothing

    torch.compiler.reset()
    compiler = aot_autograd(fw_compiler=keep, bw_compiler=lambda graph_module, _: graph_module) if to_kernels else keep
    compiled = torch.compile(function, backend=compiler, fullgraph=True)
    with torch.set_grad_enabled(training):
        for arguments in calls:
            compiled(*arguments)
    return graphs


def gated_call(batch: int, grid: tuple[int, int]) -> tuple[torch.Tensor | tuple[int, int], ...]:
    qkv = torch.randn(batch, grid[0] * grid[1], 3, HEADS, 48, dtype=torch.bfloat16)
    return qkv, torch.randn(HEADS, 3), torch.randn(HEADS), torch.randn(HEADS), grid


def local_call(batch: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
    projected = torch.randn(batch, height, width, 3, HEADS, 16, dtype=torch.bfloat16)
    return projected, torch.randn(1, 7, 8), torch.randn(1, 7, 8)


def on_grid(backend):
    """A backend of GPSA that takes what `gated_call` gives."""

    def function(qkv, *parameters_and_grid):
        return backend(qkv, Positions(*parameters_and_grid))

    return function


def local(projected, *embeddings):
    return triton.run(projected, embeddings, Window(7))


def test_one_graph_does_for_many_batches(no_gpu):
    calls = [gated_call(batch, GRID) for batch in (2, 3, 4, 5)]
    assert len(graphs_of(on_grid(joint.run), *calls)) == 2  # one for the first, one for all others


@pytest.mark.parametrize("training", [False, True])
def test_one_graph_does_for_images_of_many_sizes(no_gpu, training):
    calls = [local_call(*sizes) for sizes in ((2, 5, 9), (3, 7, 11), (4, 13, 8), (5, 6, 17), (2, 200, 201))]
    for projected, *_ in calls:
        projected.requires_grad_(training)
    assert len(graphs_of(local, *calls, training=training)) == 2


def test_windows_of_other_sizes_are_compiled_for(no_gpu):
    """A number that changes becomes symbolic, which no kernel is compiled for."""

    def any_window(projected, size):
        return triton.run(projected, None, Window(size))

    projected = local_call(2, 5, 9)[0]
    assert len(graphs_of(any_window, *[(projected, size) for size in (3, 5, 7)])) == 3


@pytest.mark.parametrize("backend", [joint.run, fused.run])
def test_only_the_batch_is_symbolic(backend):
    """Where grids change from call to call torch.compile makes them symbolic; inductor would fail on what is padded."""
    calls = [gated_call(2, GRID), gated_call(3, (5, 4)), gated_call(4, (4, 11))]
    for graph in (graph_module.graph for graph_module in graphs_of(on_grid(backend), *calls, to_kernels=False)):
        (weights,) = graph.find_nodes(op="call_function", target=torch.ops.nearsight.gated_weights.default)
        (returned,) = graph.output_node().args[0]
        sizes = (*weights.meta["example_value"][0].shape, *returned.meta["example_value"].shape[1:])
        assert all(isinstance(size, int) for size in sizes)


@pytest.mark.parametrize(
    ("function", "call", "operator"),
    [
        (on_grid(joint.run), gated_call(2, GRID), torch.ops.nearsight.gated_weights.default),
        (local, local_call(2, 5, 9), torch.ops.nearsight.local_attention.default),
    ],
)
def test_a_graph_names_the_edition_of_its_kernels(function, call, operator):
    """torch's caches on disk know it by that: what the backward pass launches is not in what they look at."""
    (graph_module,) = graphs_of(function, call, to_kernels=False)
    (node,) = graph_module.graph.find_nodes(op="call_function", target=operator)
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
        "local_attention": {name for name, _ in (*THREADS[0], *DENSE[0])},
        "local_attention_backward": {name for name, _ in (*THREADS[1], *DENSE[1])},
    }
    for operator, kernels in expected.items():
        assert {kernel.__name__ for kernel in get_triton_kernels_for_op(f"nearsight::{operator}")} == kernels
