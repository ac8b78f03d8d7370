"""Layers with rates of their own, a body that is frozen at first, and the end that patience makes, resumed exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask
from nearsight.engine.layers import head_names, layers_from_head
from nearsight.engine.optimizer import body_share, build_optimizer, set_rates
from nearsight.engine.training import train
from nearsight.models import create_model
from nearsight.recipes.files import named_recipe
from nearsight.runs.exits import PreemptedError
from nearsight.runs.folder import RunFolder

SMALL = {"width": 36, "depth": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "few.npz"
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 3
    pixels = (rng.integers(0, 120, (24, 32, 32, 3)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    halves = {"train": slice(0, 16), "val": slice(16, 24)}
    arrays = {
        f"{name}_{kind}": value[part]
        for name, part in halves.items()
        for kind, value in (("images", pixels), ("labels", labels))
    }
    np.savez(path, classes=np.array(["a", "b", "c"]), **arrays)
    return str(path)


def recipe(data, **changes):
    base = named_recipe("small").with_changes(
        data=data, model="convit_nano_32", model_options=SMALL, image_size=32, epochs=4.0, batch=8, lr_batch=0, ema=0.0,
        warmup_epochs=0.5, report=False, device="cpu", mix_probability=0.0, drop_path=0.0,
    )  # fmt: skip
    return base.with_changes(**changes)


@pytest.mark.parametrize(
    ("model", "first", "last_block", "head"),
    [
        (lambda: create_model("convit_nano_32", num_classes=3), "pos_embed", "blocks.5.norm1.weight", "head.weight"),
        (lambda: create_model("deit_tiny_distilled", depth=2), "dist_token", "norm.weight", "head_dist.bias"),
        (lambda: create_model("resnet26"), "stem.conv1.weight", "layer4.0.conv1.weight", "fc.bias"),
        (lambda: timm.create_model("resnet18"), "conv1.weight", "layer4.1.conv1.weight", "fc.weight"),
        (lambda: timm.create_model("vit_tiny_patch16_224", depth=2), "pos_embed", "norm.weight", "head.weight"),
        (
            lambda: create_model("retinanet_convit_tiny", depth=3, num_gated_blocks=1, channels=16, head_depth=1),
            "backbone.vit.patch_embed.proj.weight",
            "backbone.vit.norm.weight",
            "heads.classes.predictor.weight",
        ),
    ],
    ids=["convit", "distilled", "resnet", "timm resnet", "timm vit", "detector"],
)
def test_layers_are_counted_from_the_head(model, first, last_block, head):
    with torch.device("meta"):
        built = model()
    layers = layers_from_head(built)
    assert layers.keys() == {name for name, _ in built.named_parameters()}
    assert layers[head] == 0
    assert layers[last_block] == 1
    assert layers[first] == max(layers.values())
    assert head in head_names(built)


def test_rates_fall_towards_the_input(data):
    model = create_model("convit_nano_32", num_classes=3, **SMALL)
    wanted = ClassificationRecipe(layer_decay=0.5, head_rate=3.0)
    optimizer = build_optimizer(model, wanted, torch.zeros(()))
    set_rates(optimizer, 0.1, 0.5)
    of_parameter = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    rates = {name: of_parameter[id(parameter)] for name, parameter in model.named_parameters()}
    assert rates["head.weight"] == pytest.approx(0.3)  # the body's share does not touch it
    assert rates["blocks.2.mlp.fc1.weight"] == pytest.approx(0.05)
    assert rates["blocks.0.mlp.fc1.weight"] == pytest.approx(0.05 / 4)
    assert rates["patch_embed.proj.weight"] == pytest.approx(0.05 / 8)


def test_the_bodys_share():
    assert [body_share(step, 0, 3) for step in (0, 9)] == [1, 1]
    assert [body_share(step, 4, 2) for step in (0, 3, 4, 5, 9)] == [0, 0, 0.5, 1, 1]


def weights_after(run, step):
    return run.checkpoints().load(step).tensors["model"]


@pytest.mark.parametrize("model", ["convit_nano_32", "resnet26", "timm:resnet18"])
def test_a_frozen_body_stays_and_then_learns(model, data, tmp_path):
    options = {"convit_nano_32": SMALL, "resnet26": {"width_multiplier": 0.25}}.get(model, {})
    wanted = recipe(data, model=model, model_options=options, frozen_epochs=1.0, epochs=2.0, keep=9)
    run = RunFolder(tmp_path / "run")
    fresh = ClassificationTask(wanted)
    train(wanted, run)
    head = head_names(fresh.build_model())
    at_first, later = weights_after(run, 2), weights_after(run, 4)
    whole = RunFolder(tmp_path / "always")
    train(wanted.with_changes(frozen_epochs=9.0), whole)
    never = weights_after(whole, 4)
    kept = [name for name, value in at_first.items() if name not in head and torch.equal(value, never[name])]
    assert set(kept) == at_first.keys() - head  # running statistics too
    moved = [name for name in head if not torch.equal(at_first[name], never[name])]
    assert moved == list(head)
    assert all(
        not torch.equal(later[name], at_first[name]) for name in later if name.endswith(("conv1.weight", "fc1.weight"))
    )


def test_a_killed_run_goes_on_across_the_end_of_freezing_bit_for_bit(data, tmp_path):
    wanted = recipe(data, frozen_epochs=1.5, layer_decay=0.7, head_rate=2.0, epochs=3.0, keep=9, save_every=1)
    train(wanted, RunFolder(tmp_path / "whole"))
    for stop_at in (2, 4):  # within the frozen steps, and after them
        cut = RunFolder(tmp_path / f"cut{stop_at}")

        class Stopped(ClassificationTask):
            def prepare(self, inputs, step, first):
                if int(step) == stop_at:  # noqa: B023 - used within this turn of the loop
                    raise PreemptedError("a signal")
                return super().prepare(inputs, step, first)

        with pytest.raises(PreemptedError):
            train(wanted, cut, open_task=Stopped)
        train(wanted, cut)
        ours, theirs = weights_after(cut, 6), weights_after(RunFolder(tmp_path / "whole"), 6)
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_patience_ends_a_run_which_is_then_finished(data, tmp_path):
    class Flat(ClassificationTask):
        """Validation gets worse from its second epoch on."""

        seen = 0

        def evaluate(self, model, split, context):
            type(self).seen += split == "val"
            model.eval()
            yield "top1", 50.0 - self.seen
            yield "loss", 1.0

    wanted = recipe(data, epochs=9.0, patience=2.0)
    run = RunFolder(tmp_path / "run")
    summary = train(wanted, run, open_task=Flat)
    assert (summary["steps"], summary["planned_steps"], summary["selected"]["step"]) == (6, 18, 2)
    again = train(wanted, run, open_task=Flat)
    assert again["steps"] == 6  # finished: nothing is trained
    # Killed before the summary was written: it is not trained on either.
    (run.path / "done.json").unlink()
    assert train(wanted, run, open_task=Flat)["steps"] == 6
    longer = train(wanted.with_changes(epochs=10.0), run, open_task=Flat, override=True)
    assert longer["steps"] == 8  # another plan: it goes on until patience ends that, at the next evaluation
    assert json.loads((run.path / "done.json").read_text())["planned_steps"] == 20


def test_a_model_that_does_not_tell_its_layers():
    with pytest.raises(ValueError, match="Linear does not say which layers it has"):
        layers_from_head(torch.nn.Linear(2, 2))


def test_a_falling_loss_is_better_validation(tmp_path):
    """Selected by loss, a run goes on while it falls, and ends when it rises."""
    from types import SimpleNamespace

    from nearsight.engine.state import Progress
    from nearsight.engine.trainer import Trainer

    def evaluated(losses: list[float]) -> int:
        trainer = Trainer.__new__(Trainer)
        trainer.progress, trainer.total_steps, trainer.note = Progress(), 100, lambda text: None
        trainer.task = SimpleNamespace(selection="loss", steps_per_epoch=1)
        trainer.recipe = SimpleNamespace(patience=2.0)
        for loss in losses:
            trainer.progress.step += 1
            trainer._lose_patience({"val_loss": loss})
        return trainer.progress.ended

    assert evaluated([1.0, 0.9, 0.8, 0.7, 0.6]) == 0
    assert evaluated([1.0, 1.1, 1.2, 1.3]) == 100
