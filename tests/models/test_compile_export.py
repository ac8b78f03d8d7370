"""One model of each family through torch.compile(fullgraph=True) and torch.export."""

import warnings

import pytest
import torch

from nearsight.acceleration import accelerate, restore
from nearsight.models import create_model

FAMILIES = {"deit_nano_32": 32, "convit_nano_32": 32, "resnet26": 64, "sasa_resnet26": 64}


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    """All models share one forward's code, and torch compiles that eight times at most."""
    torch.compiler.reset()


def build(name):
    arguments = {"layers": (1, 1, 1, 1), "width_multiplier": 0.5} if "resnet" in name else {"depth": 3}
    if name.startswith("convit"):
        arguments["num_gated_blocks"] = 2
    model = accelerate(create_model(name, num_classes=4, **arguments)).eval()
    return model, torch.randn(2, 3, FAMILIES[name], FAMILIES[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_compiles_to_one_graph(name):
    model, images = build(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_models_compile_to_one_graph_and_export(name):
    model, images = build(name)
    restore(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside the exporter
        exported = torch.export.export(model, (images,))
    torch.testing.assert_close(exported.module()(images), model(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_trains_as_one_graph(name):
    model, images = build(name)
    model.train()
    torch.compile(model, fullgraph=True, backend="aot_eager")(images).square().sum().backward()
    compiled = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model(images).square().sum().backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(compiled[n], p.grad, atol=1e-4, rtol=1e-3)


def test_checkpointing_and_compiling_go_together():
    model, images = build("sasa_resnet26")
    model.train().set_grad_checkpointing()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    results = []
    for step in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        model.load_state_dict(start)
        model.zero_grad()
        step(images).square().sum().backward()
        results.append({**{n: p.grad.clone() for n, p in model.named_parameters()}, **model.state_dict()})
        results[-1] = {key: value.detach().clone() for key, value in results[-1].items()}
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_exports(name):
    model, images = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside the exporter
        exported = torch.export.export(model, (images,))
    torch.testing.assert_close(exported.module()(images), model(images))


@pytest.mark.parametrize("name", ["deit_nano_32", "convit_nano_32", "resnet26"])
def test_exports_for_any_batch_height_and_width(name):
    model, images = build(name)
    side, stride = FAMILIES[name], model.stride
    batch, rows, cols = (torch.export.Dim(axis, min=1, max=64) for axis in ("batch", "rows", "cols"))
    images = torch.cat((images, images), dim=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations inside the exporter
        exported = torch.export.export(
            model, (images,), dynamic_shapes=({0: batch, 2: stride * rows, 3: stride * cols},)
        )
    for shape in ((1, 3, side, 2 * side), (3, 3, side + stride, 2 * side), (2, 3, 5 * stride, 2 * stride)):
        other = torch.randn(shape)
        torch.testing.assert_close(exported.module()(other), model(other))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAMILIES)
def test_compiles_with_inductor_and_trains(name):
    model, images = build(name)
    compiled = torch.compile(model, fullgraph=True)
    compiled(images).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
