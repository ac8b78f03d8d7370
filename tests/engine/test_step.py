"""The parts of an update: groups, schedule, average, precision, and a batch that may be cut in any way."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re

import pytest
import torch
from torch import nn
from toy import ToyTask, toy_recipe

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.engine.callbacks import Callback
from nearsight.engine.data import smaller_micro_batch
from nearsight.engine.distributed import World
from nearsight.engine.optimizer import (
    AveragedModel,
    build_optimizer,
    decay_groups,
    ema_weight,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
)
from nearsight.engine.state import TrainState
from nearsight.engine.step import StepSettings, TrainStep
from nearsight.engine.task import Batch, ProcessContext
from nearsight.engine.training import train
from nearsight.models import create_model
from nearsight.runs.folder import RunFolder


def _names_of(model, parameters):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


@pytest.mark.parametrize(("positions", "gates"), [(False, False), (True, False), (True, True)])
def test_decay_spares_vectors_positions_and_gates_by_choice(positions, gates):
    model = create_model("convit_nano_32", num_classes=5)
    groups = decay_groups(model, ClassificationRecipe(decay_positions=positions, decay_gates=gates))
    decayed, spared = (_names_of(model, group["params"]) for group in groups)
    assert ("blocks.0.attn.v_pos" in decayed) == positions
    assert ("blocks.0.attn.gate" in decayed) == gates
    assert {"blocks.0.attn.qk.weight", "patch_embed.proj.weight", "head.weight"} <= decayed
    assert {"pos_embed", "cls_token", "norm.weight", "blocks.0.mlp.fc1.bias"} <= spared
    assert len(decayed) + len(spared) == len(list(model.parameters()))


def test_frozen_parameters_are_not_optimised():
    model = create_model("convit_nano_32", train_gate=False)
    names = set().union(*(_names_of(model, group["params"]) for group in decay_groups(model, ClassificationRecipe())))
    assert "blocks.0.attn.gate" not in names


def test_batch_norms_statistics_follow_at_the_recipes_pace():
    class WithNorm(ToyTask):
        def build_model(self):
            return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))

    def momentum(**changes):
        recipe = toy_recipe(**changes)
        return TrainState(WithNorm(recipe), recipe, World(), torch.device("cpu")).model[1].momentum

    assert momentum() == 0.1
    assert momentum(norm_decay=0.9999) == pytest.approx(1e-4)


def test_statistics_that_cannot_follow_in_time_are_told(tmp_path):
    class WithNorm(ToyTask):
        def build_model(self):
            first, *others = super().build_model()
            norm = nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), nn.BatchNorm2d(first.out_features), nn.Flatten())
            return nn.Sequential(first, norm, *others)

    notes = []

    class Notes(Callback):
        def note(self, text):
            notes.append(text)

    for decay in (0.0, 0.9999):
        recipe = toy_recipe(norm_decay=decay, epochs=2.0)
        train(recipe, RunFolder(tmp_path / f"{decay}"), open_task=WithNorm, callbacks=lambda trainer: [Notes()])
    told = [text for text in notes if "--norm-decay 0" in text]
    assert len(told) == 1
    assert "0.9999" in told[0]


def test_a_peak_below_the_least_rate_does_not_climb():
    recipe = ClassificationRecipe(lr=5e-6, lr_batch=0, min_lr=1e-5, warmup_lr=0.0, epochs=10.0, warmup_epochs=1.0)
    rates = [learning_rate(step, 100, recipe) for step in range(100)]
    assert max(rates) == 5e-6 == rates[-1]


def test_learning_rate_warms_up_and_follows_a_cosine():
    recipe = ClassificationRecipe(
        epochs=10.0, warmup_epochs=2.0, lr=1e-3, lr_batch=512, batch=1024, warmup_lr=1e-6, min_lr=1e-5, mixup=0.0
    )
    rates = [learning_rate(step, 100, recipe) for step in range(100)]
    assert rates[0] == pytest.approx(1e-6)
    assert max(rates) == rates[20] == pytest.approx(2e-3)
    assert rates[60] == pytest.approx((2e-3 + 1e-5) / 2)
    assert rates[99] == pytest.approx(1e-5, rel=0.1)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[20:]))


def test_average_trails_the_weights():
    source = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average.load_state_dict(source.state_dict())
    trailing = AveragedModel(source, average)
    before = source[0].weight.detach().clone()
    with torch.no_grad():
        source[0].weight += 1
    source[1].running_mean += 5
    trailing.update(torch.tensor(0.25))
    torch.testing.assert_close(average[0].weight, before + 0.25)
    assert torch.equal(average[1].running_mean, source[1].running_mean)
    assert ema_weight(0, 0.999) == 0.9
    assert ema_weight(10**6, 0.999) == pytest.approx(0.001)


def _plain_step(task, *, precision=torch.float32, micro=16, window=4, clip_grad=0.0):
    """(state, step, feed) of a task on the CPU, uncaptured."""
    cpu, recipe = torch.device("cpu"), task.recipe
    state = TrainState(task, recipe, World(), cpu)
    accumulation = recipe.batch // micro
    settings = StepSettings(cpu, precision, clip_grad, micro, accumulation, window, compile=False, capture=False)
    return state, TrainStep(task, state, settings, World()), task.feed(0, ProcessContext(cpu, micro_batch=micro))


def _run_steps(recipe, *, micro, precision=torch.float32, steps=6, compile=False):
    task = ToyTask(recipe)
    state = TrainState(task, recipe, World(), torch.device("cpu"))
    settings = StepSettings(
        torch.device("cpu"), precision, recipe.clip_grad, micro, recipe.batch // micro, steps, compile, capture=False
    )
    step = TrainStep(task, state, settings, World())
    feed = task.feed(0, ProcessContext(torch.device("cpu"), micro_batch=micro))
    for number in range(steps):
        step(number, next(feed), 1e-2, 0.1, seed=number)
    return step.read(), {name: value.clone() for name, value in state.model.state_dict().items()}


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd"}, {"clip_grad": 0.1}])
def test_any_cut_of_the_batch_gives_the_same_updates(changes):
    recipe = toy_recipe(drop_path=0.0, **changes)
    whole, whole_weights = _run_steps(recipe, micro=16)
    parts, part_weights = _run_steps(recipe, micro=4)
    assert [one.loss for one in parts] == pytest.approx([one.loss for one in whole], abs=1e-6)
    assert [one.grad_norm for one in parts] == pytest.approx([one.grad_norm for one in whole], rel=1e-4)
    torch.testing.assert_close(part_weights, whole_weights, atol=1e-5, rtol=1e-4)


def test_clipping_limits_what_the_optimiser_sees():
    free, _ = _run_steps(toy_recipe(drop_path=0.0, optimizer="sgd", weight_decay=0.0), micro=16, steps=1)
    clipped, clipped_weights = _run_steps(
        toy_recipe(drop_path=0.0, optimizer="sgd", weight_decay=0.0, clip_grad=0.01), micro=16, steps=1
    )
    assert clipped[0].grad_norm == free[0].grad_norm > 0.01  # what is logged is the norm before clipping
    start = TrainState(
        ToyTask(toy_recipe()), toy_recipe(drop_path=0.0), World(), torch.device("cpu")
    ).model.state_dict()
    moved = math.sqrt(sum((clipped_weights[name] - start[name]).square().sum().item() for name in start))
    # Nesterov's first step is (1 + momentum) times the gradient.
    assert moved == pytest.approx(0.01 * 1.9 * 1e-2, rel=0.2)


def test_bf16_learns_like_fp32():
    full, _ = _run_steps(toy_recipe(drop_path=0.0), micro=16, steps=30)
    half, _ = _run_steps(toy_recipe(drop_path=0.0), micro=16, steps=30, precision=torch.bfloat16)
    assert half[-1].loss == pytest.approx(full[-1].loss, rel=0.05)
    assert half[-1].loss != full[-1].loss


def test_fp16_scale_backs_off_and_recovers():
    _, step, _ = _plain_step(ToyTask(toy_recipe(drop_path=0.0)), precision=torch.float16)
    assert step.scale.item() == 2.0**16
    for bad in (1.0, 1.0, 0.0):
        step._adapt_scale(torch.tensor(bad))
    assert step.scale.item() == 2.0**14
    step.growth.fill_(1999)
    step._adapt_scale(torch.tensor(0.0))
    assert (step.scale.item(), step.growth.item()) == (2.0**15, 0)


def test_fp16_overflow_is_not_trouble():
    state, step, feed = _plain_step(ToyTask(toy_recipe(drop_path=0.0)), precision=torch.float16)
    before = [parameter.clone() for parameter in state.model.parameters()]
    step.scale.fill_(1e38)
    step(0, next(feed), 1e-2, 0.1, seed=0)
    assert all(torch.equal(old, new) for old, new in zip(before, state.model.parameters(), strict=True))
    step.scale.fill_(1024.0)
    step(1, next(feed), 1e-2, 0.1, seed=1)
    first, second = step.read()
    assert math.isfinite(first.loss)
    assert (first.skipped, first.overflow) == (True, True)
    assert (second.skipped, second.overflow) == (False, False)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, ""),
        (float("nan"), r"2 of 4 gradients are not finite; that of 0.bias is nearest the loss."),
        (1e30, r"Every gradient is finite, but not their norm: up to \d.\de\+\d\d in 0.\w+."),
    ],
)
def test_the_diagnosis_says_where_trouble_began(factor, words):
    """NaN travels towards the input, and clipping spreads it to the rest: the batch is run again, with its dropout."""
    state, step, feed = _plain_step(ToyTask(toy_recipe(drop_path=0.5)), clip_grad=0.0 if factor == 1.0 else 1.0)
    state.model[1].register_full_backward_hook(lambda module, into, out: (into[0] * factor,))
    before = copy.deepcopy(state.model.state_dict())
    step(0, next(feed), 1e-2, 0.1, seed=3)
    gradients = [parameter.grad.clone() for parameter in state.model.parameters()]
    if factor == 1.0:
        state.model.load_state_dict(before)
    else:
        assert step.read()[0].skipped
        assert all(torch.equal(before[name], value) for name, value in state.model.state_dict().items())
    assert re.fullmatch(words, step.diagnosis())
    if factor == 1.0:
        assert all(torch.equal(old, p.grad) for old, p in zip(gradients, state.model.parameters(), strict=True))


def test_the_ring_must_be_read_in_time():
    _, step, feed = _plain_step(ToyTask(toy_recipe()), window=1)
    step(0, next(feed), 1e-2, 0.1, seed=0)
    with pytest.raises(RuntimeError, match="read"):
        step(1, next(feed), 1e-2, 0.1, seed=1)
    assert len(step.read()) == 1
    assert step.read() == []


def test_optimizers_are_torchs_own_and_fused():
    model = nn.Linear(3, 2)
    adam = build_optimizer(model, ClassificationRecipe(), torch.zeros(()))
    sgd = build_optimizer(model, ClassificationRecipe(optimizer="sgd"), torch.zeros(()))
    assert isinstance(adam, torch.optim.AdamW)
    assert adam.defaults["betas"] == (0.9, 0.999)
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.defaults["nesterov"]
    assert adam.defaults["fused"]
    assert sgd.defaults["fused"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_moments_come_back_to_the_weights_they_belong_to(optimizer):
    """Channels last: weights and moments must lie alike, or fused kernels pair the wrong ones."""

    def step(model, optimizer, images):
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()

    recipe = ClassificationRecipe(optimizer=optimizer)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    running = build_optimizer(model, recipe, torch.tensor(0.1))
    images = torch.randn(3, 2, 3, 5, 5)
    step(model, running, images[0])
    resumed = copy.deepcopy(model)
    again = build_optimizer(resumed, recipe, torch.tensor(0.1))
    stored = {name: value.contiguous().clone() for name, value in optimizer_tensors(model, running).items()}
    restore_optimizer(resumed, again, stored)
    for one, its_optimizer in ((model, running), (resumed, again)):
        step(one, its_optimizer, images[1])
        step(one, its_optimizer, images[2])
    assert torch.equal(resumed.weight, model.weight)


def test_a_skipped_step_leaves_batch_norms_as_they_were():
    class Normed(ToyTask):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

        def prepare(self, inputs, step, first):
            batch = super().prepare(inputs, step, first)
            return batch._replace(inputs=batch.inputs * (float("inf") if int(step) == 1 else 1.0))

    state, step, feed = _plain_step(Normed(toy_recipe(drop_path=0.0)), micro=8)
    seen = []
    for number in range(3):
        step(number, next(feed), 1e-2, 0.1, seed=number)
        seen.append([state.model[1].running_mean.clone(), state.model[1].running_var.clone()])
    assert [one.skipped for one in step.read()] == [False, True, False]
    assert all(torch.equal(after, before) for after, before in zip(seen[1], seen[0], strict=True))
    assert not torch.equal(seen[2][0], seen[1][0])
    assert state.averaged.model[1].running_mean.isfinite().all()


@pytest.mark.parametrize(
    ("micro", "multiple", "expected"), [(16, 1, 8), (12, 4, 4), (6, 3, 3), (5, 1, 1), (4, 4, None)]
)
def test_smaller_micro_batches_stay_whole_groups(micro, multiple, expected):
    assert smaller_micro_batch(micro, multiple) == expected


def test_a_captured_step_is_the_same_step(monkeypatch):
    """The capture's bookkeeping without a GPU: real steps first, one capture, replays fed through fixed buffers.

    Here the "capture" executes, so that the replay which follows it must not; later replays execute what was captured.
    """
    counts = {"captured": 0, "replayed": 0}

    class Graph:
        def replay(self) -> None:
            counts["replayed"] += 1
            if counts["replayed"] > 1:
                step._update(step._buffers)

    @contextlib.contextmanager
    def capture(graph, **options):
        counts["captured"] += 1
        yield

    class Stream:
        def wait_stream(self, other) -> None:
            assert isinstance(other, Stream)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    recipe = toy_recipe(drop_path=0.2)
    results = []
    for captured in (False, True):
        task = ToyTask(recipe)
        state = TrainState(task, recipe, World(), torch.device("cpu"))
        settings = StepSettings(torch.device("cpu"), torch.float32, 0.0, 8, 2, 9, compile=False, capture=captured)
        step = TrainStep(task, state, settings, World())
        feed = task.feed(0, ProcessContext(torch.device("cpu"), micro_batch=8))
        for number in range(9):
            step(number, next(feed), 1e-2 / (1 + number), ema_weight(number, 0.9), seed=number)
        results.append((step.read(), state.model.state_dict(), state.averaged.model.state_dict()))
    assert counts == {"captured": 1, "replayed": 6}
    assert results[0][0] == results[1][0]
    for plain, graphed in zip(results[0][1:], results[1][1:], strict=True):
        assert all(torch.equal(plain[name], graphed[name]) for name in plain)


def test_of_equal_weights_the_later_are_selected(tmp_path):
    class Tied(ToyTask):
        scores = iter((0.2, 0.5, 0.5, 0.1))

        def evaluate(self, model, split, context):
            yield "score", next(self.scores) if split == "val" else 0.0

    recipe = toy_recipe(epochs=4.0, eval_every=1.0, ema=0.0)
    summary = train(recipe, RunFolder(tmp_path / "run"), open_task=Tied)
    assert summary["selected"] == {"step": 3 * Tied(recipe).steps_per_epoch, "value": 0.5, "weights": "model"}


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_have_the_memory_format_of_the_model(channels_last):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, images):
            self.formats = [
                tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (images, self.conv.weight)
            ]
            return self.conv(images).mean((1, 2, 3))

    class Pictures(ToyTask):
        def build_model(self):
            return Seen()

        def prepare(self, inputs, step, first):
            images = inputs["keys"].float()[:, None, None, None].div(1e20).expand(-1, 3, 5, 6)
            return Batch(images.contiguous(), torch.zeros(len(images)))

    state, step, feed = _plain_step(Pictures(toy_recipe(channels_last=channels_last, ema=0.0)))
    step(0, next(feed), 0.0, 0.0, 1)
    assert state.model.formats == [channels_last] * 2
