"""Fast forms of layers: the same numbers and state dict, undone exactly, and plain where more than that is wanted."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.nn.utils import parametrize
from watching_operators import Watching

from nearsight.acceleration import FAST, FastFeedForward, FastLinear, accelerate, restore
from nearsight.bench.measure import peak_memory
from nearsight.kernels import linear_layer
from nearsight.models import create_model
from nearsight.models.embed import PatchEmbed
from nearsight.models.vit import Block, VisionTransformer
from nearsight.nn import FeedForward, GatedPositionalSelfAttention

KINDS = {
    "convit_nano_32": {"depth": 3, "num_gated_blocks": 2},
    "deit_nano_32_distilled": {"depth": 2},
    "convit_micro_32": {"depth": 2, "num_gated_blocks": 1, "positional_layer": "psa", "qkv_bias": True},
    "sasa_resnet26": {"layers": (1, 1, 1, 1), "width_multiplier": 0.25, "attention": {"bias": True}},
}


def equation(layer, x):
    return layer.fc2(F.gelu(layer.fc1(x)))


def small(name="convit_nano_32", **arguments):
    return accelerate(create_model(name, num_classes=5, **arguments)).eval()


def classes(model):
    return [type(module) for module in model.modules()]


# In and out


@pytest.mark.parametrize("name", KINDS)
def test_the_same_numbers_and_names_and_undone_exactly(name):
    model = create_model(name, num_classes=5, **KINDS[name]).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def results():
        logits = model(images)
        return logits, torch.autograd.grad(logits.square().sum(), list(parameters.values()))

    plain, drawn, was, state = results(), repr(model), classes(model), model.state_dict()
    assert accelerate(model) is model
    assert set(classes(model)) & set(FAST.values())
    assert "Fast" in repr(model)
    torch.testing.assert_close(results(), plain)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    fast = classes(model)
    assert classes(accelerate(model)) == fast  # a second time changes nothing
    assert restore(model) is model
    assert (repr(model), classes(model)) == (drawn, was)
    assert all(torch.equal(one, other) for one, other in zip(results()[1], plain[1], strict=True))


def test_every_fast_form_is_in_use_somewhere():
    used = {kind for name, options in KINDS.items() for kind in classes(small(name, **options))}
    assert set(FAST.values()) | {FastLinear} <= used


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("name", KINDS)
def test_copies_and_pickles_are_as_fast(name, copied):
    model, images = small(name, **KINDS[name]), torch.randn(1, 3, 32, 32)
    other = copied(model)
    assert classes(other) == classes(model)
    assert torch.equal(other(images), model(images))


def test_heads_and_layers_of_others_are_left_alone():
    class Own(FeedForward):
        pass

    model = create_model("deit_nano_32", depth=2)
    model.blocks[0].mlp.__class__ = Own
    accelerate(model)
    assert type(model.head) is nn.Linear
    assert type(model.blocks[0].mlp) is Own
    assert type(model.blocks[0].mlp.fc1) is nn.Linear
    model.reset_classifier(3)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    others = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Conv2d(1, 1, 1))
    assert classes(accelerate(others)) == classes(copy.deepcopy(others))


@pytest.mark.parametrize("place", ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"])
def test_an_adapter_around_a_linear_layer_is_called(place):
    class Adapter(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) + 1

    model, images = small("deit_nano_32", depth=2), torch.randn(1, 3, 32, 32)
    block = model.blocks[-1]
    part, _, name = place.partition(".")
    setattr(getattr(block, part), name, Adapter(getattr(getattr(block, part), name)))
    fast = model(images)
    torch.testing.assert_close(restore(model)(images), fast)


def test_the_convolution_of_patches_is_called_where_a_hook_stands_on_it():
    model, seen = small(), []
    model.patch_embed.proj.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(torch.randn(1, 3, 32, 32))
    assert seen == [(1, 144, 8, 8)]


@pytest.mark.parametrize("still_there", [True, False])
def test_parametrised_layers_are_restored_too(still_there):
    model = create_model("convit_nano_32", num_classes=5, **KINDS["convit_nano_32"]).eval()
    images = torch.randn(1, 3, 32, 32)
    was, kinds = model(images), classes(model)
    accelerate(model)
    changed = [(layer, "weight") for layer in model.modules() if type(layer) is FastLinear]
    changed += [(layer, "v_pos") for layer in model.modules() if isinstance(layer, GatedPositionalSelfAttention)]
    for layer, name in changed:
        parametrize.register_parametrization(layer, name, nn.Identity())
    if still_there:
        copied = copy.deepcopy(model)  # has the same classes: torch derives none for a copy
        assert "Fast" not in repr(restore(model))
        torch.testing.assert_close(model(images), was)
        assert "ParametrizedFastLinear" in repr(copied)
        torch.testing.assert_close(copied(images), was)
    for layer, name in changed:
        parametrize.remove_parametrizations(layer, name)
    assert classes(restore(model)) == kinds
    torch.testing.assert_close(model(images), was)


def test_what_is_no_model_is_refused():
    for change in (accelerate, restore):
        with pytest.raises(ValueError, match=r"'convit_tiny' is no model; give a torch\.nn\.Module"):
            change("convit_tiny")


# Feed-forward, projections, patches


@pytest.fixture
def another_processor(monkeypatch):
    """One whose vectors MKL does not use, and two threads: with one, torch would convolve few images by MKL."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(linear_layer, "_processor_reservation", lambda: None)
    yield
    torch.set_num_threads(before)


def test_without_gradients_the_hidden_layer_is_there_once():
    layer, x = accelerate(FeedForward(64, 256)), torch.randn(1, 500, 64)
    hidden = 500 * 256 * 4
    with torch.no_grad():
        assert peak_memory(layer, x, torch.device("cpu")) < 1.5 * hidden
    assert peak_memory(layer, x, torch.device("cpu")) > 2 * hidden


@pytest.mark.parametrize("watched", ["fc1", "act"])
def test_who_watches_sees_what_was_computed(watched):
    layer, x = accelerate(FeedForward(6, 10)), torch.randn(2, 5, 6)
    seen = {}
    getattr(layer, watched).register_forward_hook(lambda module, inputs, output: seen.update(here=(inputs, output)))
    with torch.no_grad():
        layer(x)
        inputs, output = seen["here"]
        hidden = layer.fc1(x)
        torch.testing.assert_close(*((output, hidden) if watched == "fc1" else (inputs[0], hidden)))


def test_hooks_on_every_module_see_what_was_computed():
    layer, x = accelerate(FeedForward(6, 10)), torch.randn(2, 5, 6)
    seen = {}
    handle = register_module_forward_hook(lambda module, inputs, output: seen.update({module: output}))
    with torch.no_grad():
        layer(x)
        handle.remove()
        torch.testing.assert_close(seen[layer.fc1], layer.fc1(x))
    assert layer.act in seen


def test_another_gelu_is_heeded_with_gradients_and_without():
    layer, x = accelerate(FeedForward(6, 10)), torch.randn(2, 5, 6) * 3
    layer.act = torch.nn.GELU("tanh")
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.fc2(F.gelu(layer.fc1(x), approximate="tanh")))
    layer.act.forward = torch.relu
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.fc2(torch.relu(layer.fc1(x))))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated", "ignore:.torch.jit.trace_method. is deprecated")
def test_a_trace_made_without_gradients_can_be_differentiated():
    layer, x = accelerate(FeedForward(6, 10)), torch.randn(2, 5, 6)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x))
    assert traced(x).requires_grad
    assert torch.fx.symbolic_trace(layer)(x).shape == x.shape


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward derivatives use it
def test_transforms_and_forward_derivatives():
    layer, x = accelerate(FeedForward(6, 10)).requires_grad_(False), torch.randn(3, 2, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x.flatten(0, 1)).unflatten(0, (3, 2)))
    _, ours = torch.func.jvp(layer, (x[0],), (x[1],))
    _, theirs = torch.func.jvp(lambda x: equation(layer, x), (x[0],), (x[1],))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_derivatives_of_a_whole_model_need_attention_in_plain_operators():
    model = accelerate(create_model("convit_nano_32", depth=3, width=36, num_classes=3)).double().eval()
    images, direction = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        _, slope = torch.func.jvp(model, (images,), (direction,))
    step = 1e-5
    with torch.no_grad():
        difference = (model(images + step * direction) - model(images - step * direction)) / (2 * step)
    torch.testing.assert_close(slope, difference, rtol=1e-5, atol=1e-7)


def test_hooks_and_replaced_projections_are_heard():
    """One packed product stands for `qk` and `v` only while they are nothing but their weights."""

    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = accelerate(GatedPositionalSelfAttention(12, 3))
    x = torch.randn(2, 15, 12)
    packed = layer.project(x)
    seen = []
    handle = layer.qk.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    torch.testing.assert_close(layer.project(x), packed)
    assert seen == [(2, 15, 24)]
    handle.remove()
    layer.v.__class__ = Doubled
    expected = torch.cat((packed[:, :, :2], 2 * packed[:, :, 2:]), dim=2)
    torch.testing.assert_close(layer.project(x), expected)


def test_layers_take_it_as_they_are_and_compiled_but_not_exported(another_processor, monkeypatch):
    monkeypatch.setattr(linear_layer, "FEWEST_ROWS", 1)
    monkeypatch.setattr(linear_layer, "FEWEST_MULTIPLY_ADDS", 1)
    layer, x = accelerate(FeedForward(8, 12)).eval(), torch.randn(17, 5, 8)
    with Watching() as watching:
        expected = layer(x)
    assert watching.seen.count("aten.convolution.default") == 2
    exported = torch.export.export(layer, (x,))
    assert not [node for node in exported.graph.nodes if "conv" in str(node.target) or "nearsight" in str(node.target)]
    torch.testing.assert_close(exported.module()(x), expected)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)


def test_restored_linear_layers_are_torch_s_own():
    """So that adapters, quantisation and tracers know them."""
    layer = restore(accelerate(FeedForward(8, 12)))
    assert type(layer.fc1) is type(layer.fc2) is torch.nn.Linear
    quantized = torch.ao.nn.quantized.dynamic.Linear
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecation
        made = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
    assert type(made.fc1) is type(made.fc2) is quantized
    assert made(torch.randn(2, 3, 8)).shape == (2, 3, 8)


def test_patches_are_projected_as_by_the_convolution_whose_parameters_they_have():
    embed = accelerate(PatchEmbed(3, 2, 5)).double()
    images = torch.randn(2, 2, 9, 15, dtype=torch.float64, requires_grad=True)
    inputs = [images, *embed.proj.parameters()]
    expected = embed.proj(images).flatten(2).transpose(1, 2)
    for order in (torch.contiguous_format, torch.channels_last):
        tokens = embed(images.contiguous(memory_format=order))
        torch.testing.assert_close(tokens, expected)
        change = torch.randn_like(tokens)
        for ours, theirs in zip(
            torch.autograd.grad(tokens, inputs, change),
            torch.autograd.grad(expected, inputs, change, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("stem", ["patch", "conv"])
def test_tokens_lie_in_memory_as_they_are_read(stem):
    model = accelerate(create_model("convit_micro_32", stem=stem))
    tokens, _ = model.embed(torch.randn(2, 3, 32, 32))
    assert tokens.is_contiguous()


# The last block


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["deit_nano_32", "convit_nano_32", "convit_nano_32_distilled"])
def test_logits_and_gradients_are_those_of_all_features(name, checkpointed):
    model, images = small(name, qkv_bias=True).double(), torch.randn(2, 3, 20, 28, dtype=torch.float64)
    model.set_grad_checkpointing(checkpointed)
    assert model.head_tokens(images).shape == (2, model.num_prefix_tokens, model.width)
    logits, expected = model(images), model.forward_head(model.forward_features(images))
    torch.testing.assert_close(logits, expected)
    change, parameters = torch.randn_like(logits), list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(logits, parameters, change), torch.autograd.grad(expected, parameters, change), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_last_block_feeds_forward_the_heads_tokens_alone(monkeypatch):
    model = small("convit_nano_32_distilled")
    seen, run = [], FastFeedForward.forward
    monkeypatch.setattr(FastFeedForward, "forward", lambda self, x: seen.append(x.shape[1]) or run(self, x))
    model(torch.randn(1, 3, 32, 32))
    assert seen == [64, 64, 64, 64, 66, 2]


def test_a_mean_is_of_all_patches_and_hooks_see_all_tokens():
    images = torch.randn(2, 3, 32, 32)
    assert small(pool="mean").head_tokens(images).shape[1] == 64
    model = small()
    for watched in (model.norm, model.blocks[-1], model.blocks[-1].mlp.fc2):
        for register in (watched.register_forward_hook, watched.register_forward_pre_hook):
            handle = register(lambda *arguments: None)
            assert model.head_tokens(images).shape[1] == 65
            handle.remove()
        handle = watched.register_full_backward_hook(lambda *arguments: None)
        assert model.head_tokens(images).shape[1] == 65
        handle.remove()
    for register in (register_module_forward_hook, register_module_full_backward_hook):
        handle = register(lambda *arguments: None)
        assert model.head_tokens(images).shape[1] == 65
        handle.remove()
    assert model.head_tokens(images).shape[1] == 1


class _Wrapped(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, grid_size):
        return 2 * self.block(x, grid_size)


class _OwnBlock(Block):
    def forward(self, x, grid_size):
        return 2 * super().forward(x, grid_size)


class _OwnFeatures(VisionTransformer):
    def forward_features(self, images):
        return 2 * super().forward_features(images)


def _replaced_forward(model):
    run = model.blocks[-1].forward
    model.blocks[-1].forward = lambda x, grid_size: 2 * run(x, grid_size)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.blocks.__setitem__(-1, _Wrapped(model.blocks[-1])),
        lambda model: setattr(model.blocks[-1], "__class__", _OwnBlock),
        lambda model: setattr(model, "__class__", _OwnFeatures),
        _replaced_forward,
    ],
    ids=["wrapped block", "own block", "own features", "replaced forward"],
)
def test_what_users_change_is_not_passed_by(change):
    model, images = small(), torch.randn(2, 3, 32, 32)
    before = model(images)
    change(model)
    torch.testing.assert_close(model(images), model.forward_head(model.forward_features(images)))
    assert not torch.allclose(model(images), before)


# Compiled


@pytest.mark.parametrize("name", ["deit_nano_32", "convit_nano_32"])
def test_a_compiled_model_trains_at_another_size(name):
    torch.compiler.reset()
    model = small(name, depth=3).train()
    compiled = torch.compile(model, backend="aot_eager")
    for size in ((32, 32), (48, 48), (40, 56)):
        compiled(torch.randn(2, 3, *size)).square().sum().backward()
    assert model.pos_embed.grad.isfinite().all()
