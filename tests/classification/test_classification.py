"""Classification through the engine's eyes: same samples however the batch is cut, teachers, reports, later use."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pictures import image_recipe, make_folder
from PIL import Image
from toy import toy_recipe

from nearsight.acceleration import accelerate
from nearsight.classification import PredictOptions
from nearsight.classification import report as image_report
from nearsight.classification.distillation import BothHeads, Renormalised
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.task import ClassificationTask, validation_warning
from nearsight.classification.use import Classifier, evaluate
from nearsight.datasets import loading
from nearsight.datasets.labelled import subset
from nearsight.datasets.sources import open_data
from nearsight.engine.sharding import shard
from nearsight.engine.task import ProcessContext
from nearsight.engine.training import train
from nearsight.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nearsight.models import create_model
from nearsight.recipes.files import apply_changes, freeze, named_recipe
from nearsight.reports.compare import Setting, compare_runs, comparison_plot, describe_setting, welch_p
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import DATA
from nearsight.tasks import task_kind

CPU = torch.device("cpu")
AWFUL = "<script>alert('$x$')</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data") / "pictures", classes=("amber", "blue", AWFUL.replace("/", "∕")))


def _recipe(folder, /, **changes):
    return apply_changes(toy_recipe(ClassificationRecipe), image_recipe(folder, **changes), where="test")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A finished run with everything on: EMA, mixing, report."""
    path = tmp_path_factory.mktemp("runs") / "first"
    recipe = _recipe(folder, resident="on", report=True, epochs=2.0)
    train(recipe, RunFolder(path))
    return path


def test_models_without_attention_layers_pass_evaluations(folder, tmp_path):
    options = {"layers": [1, 1, 1, 1], "width_multiplier": 0.125}
    recipe = _recipe(folder, model="resnet26", image_size=32, patch_size=0, model_options=options, epochs=1.0)
    train(recipe, RunFolder(tmp_path / "run"))
    evaluated = [record for record in RunFolder(tmp_path / "run").metrics() if record["kind"] == "eval"]
    assert evaluated
    assert "nonlocality" not in evaluated[-1]


@pytest.mark.parametrize(("resident", "sampling"), [("on", "shuffled"), ("off", "shuffled"), ("off", "balanced")])
def test_a_global_batch_is_the_same_however_it_is_cut(folder, resident, sampling):
    recipe = _recipe(folder, batch=12, resident=resident, sampling=sampling)
    task = ClassificationTask(recipe)
    assert task.batch_multiple == 4  # images mix in groups that divide the batch
    step = torch.tensor(5)

    def global_batch(world: int, micro: int):
        pieces = []
        for rank in range(world):
            feed = task.feed(5, ProcessContext(CPU, rank, world, micro))
            for index, inputs in enumerate(next(feed)):
                pieces.append(task.prepare(inputs, step, rank * (12 // world) + index * micro))
        return torch.cat([p.inputs for p in pieces]), torch.cat([p.targets.labels for p in pieces])

    images, targets = global_batch(1, 12)
    assert images.shape == (12, 3, 8, 8)
    assert targets.shape == (12, 3)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(12))
    for world, micro in ((1, 4), (3, 4)):
        others, other_targets = global_batch(world, micro)
        torch.testing.assert_close(others, images)
        torch.testing.assert_close(other_targets, targets)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_augment_for_a_cpu_and_make_the_same_bits(folder, workers, monkeypatch):
    """A few images at a time. For any other device they send pixels and keys, and the device does the rest."""
    monkeypatch.setattr(loading, "_PIXELS_AT_ONCE", 5 * 16**2)
    recipe = _recipe(folder, image_size=16, batch=12, workers=workers, jitter=0.2)
    data = ClassificationTask(recipe).data
    order = data.order(1)
    parts = order.parts(12)
    by_workers, by_device = (
        list(data.epoch(order, parts, ProcessContext(device))) for device in (CPU, torch.device("meta"))
    )
    assert len(by_workers) == len(by_device) == 3
    for done, left in zip(by_workers, by_device, strict=True):
        assert done.keys() == {"images", "labels"}
        assert left["images"].dtype == torch.uint8
        assert torch.equal(done["images"], data.augmentation()(left["images"], left["keys"]))
        assert torch.equal(done["labels"], left["labels"])


def test_without_mixing_labels_stay_labels(folder):
    task = ClassificationTask(_recipe(folder, mixup=0.0, cutmix=0.0))
    assert task.batch_multiple == 1
    feed = task.feed(0, ProcessContext(CPU, micro_batch=6))
    batch = task.prepare(next(feed)[0], torch.tensor(0), 0)
    assert batch.targets.labels.dtype == torch.int64
    logits = torch.randn(6, 3)
    expected = torch.nn.functional.cross_entropy(logits, batch.targets.labels, label_smoothing=0.1)
    assert task.loss(logits, batch) == expected


@pytest.fixture
def unbalanced(tmp_path):
    """Twelve of two classes, three of the third."""
    root = make_folder(tmp_path / "unbalanced")
    for file in sorted((root / "train" / "coral").iterdir())[3:]:
        file.unlink()
    return root


@pytest.mark.parametrize("mixed", [False, True])
def test_the_loss_is_weighted_by_class_and_the_same_however_the_batch_is_cut(unbalanced, mixed):
    changes = {} if mixed else {"mixup": 0.0, "cutmix": 0.0}
    task = ClassificationTask(_recipe(unbalanced, class_weights="balanced", batch=12, **changes))
    weights = torch.tensor([27 / 36, 27 / 36, 27 / 9])
    torch.testing.assert_close(task.data.class_weights(), weights)
    batch = task.prepare(next(task.feed(0, ProcessContext(CPU, micro_batch=12)))[0], torch.tensor(0), 0)
    logits, labels = torch.randn(12, 3), batch.targets.labels
    shares = labels if mixed else 0.9 * torch.nn.functional.one_hot(labels, 3) + 0.1 / 3
    expected = -(weights * shares * logits.log_softmax(1)).sum() / 12
    torch.testing.assert_close(task.loss(logits, batch), expected)
    halves = [batch._replace(targets=batch.targets._replace(labels=half)) for half in labels.split(6)]
    cut = [task.loss(part, half) for part, half in zip(logits.split(6), halves, strict=True)]
    torch.testing.assert_close(sum(cut) / 2, expected)


def test_weights_by_the_root_are_between(unbalanced):
    weights = ClassificationTask(_recipe(unbalanced, class_weights="inverse-sqrt")).data.class_weights()
    assert weights[2] / weights[0] == pytest.approx(2)
    labels = torch.from_numpy(open_data(unbalanced).train.labels)
    assert weights[labels].mean() == pytest.approx(1)


def test_rare_classes_are_not_counted_twice(folder):
    with pytest.raises(ValueError, match="would count rare classes twice; choose one"):
        _recipe(folder, class_weights="balanced", sampling="balanced")


@pytest.mark.parametrize("measure", ["balanced", "loss"])
def test_weights_are_selected_by_another_measure(unbalanced, tmp_path, measure, capsys):
    train(_recipe(unbalanced, select_by=measure, sampling="balanced"), RunFolder(tmp_path / "run"))
    run = RunFolder(tmp_path / "run")
    values = [
        line[f"{prefix}val_{measure}"]
        for line in run.metrics()
        if line["kind"] == "eval"
        for prefix in ("", "ema_")
        if f"{prefix}val_{measure}" in line
    ]
    done = json.loads((run.path / "done.json").read_text())
    assert done["selected"]["value"] == (min if measure == "loss" else max)(values)
    (remark,) = done["remarks"]
    assert remark.startswith("val by class: balanced accuracy ")
    assert "amber" in remark
    found = evaluate(run.path, device="cpu")
    assert found.values[measure] == pytest.approx(done["selected"]["value"])
    assert found.values["balanced_low"] < found.values["balanced"] <= found.values["balanced_high"]
    assert {name: figures["n"] for name, figures in found.per_class.items()} == {"amber": 4, "blue": 4, "coral": 4}


def test_evaluation_counts_every_image_once(folder):
    task = ClassificationTask(_recipe(folder))
    names = {}
    for world in (1, 3):
        seen = torch.cat(
            [
                b.indices
                for rank in range(world)
                for b in task.data.eval_batches("val", ProcessContext(CPU, rank, world))
            ]
        )
        names[world] = sorted(seen.tolist())
    assert names[1] == names[3] == list(range(12))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 60}, "batch 60 exceeds the 36 training images|batch 60 is larger"),
        ({"data": ""}, "no data was given"),
        ({"model": "convit_mini"}, "no model is named 'convit_mini'"),
        ({"model_options": {"widht": 3}}, "widht"),
        ({"first_classes": 9}, "number of classes must be in 1..3"),
        ({"first_classes": 1}, "at least two classes; keep more with --first-classes"),
    ],
)
def test_mistakes_are_found_before_any_work(folder, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        train(_recipe(folder, **changes), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_small_validation_set_is_warned_of(folder):
    said = ClassificationTask(_recipe(folder)).describe()
    assert said[1].startswith(
        "warning: 12 validation images: accuracy on them has a standard error of up to 14.4 points"
    )
    images = open_data("clothing").val
    assert validation_warning(images) is None
    lacking = subset(images, np.flatnonzero((images.labels != 0) & (images.labels != 2)))
    assert f" validation images, none of {images.classes[0]}, {images.classes[2]}: " in validation_warning(lacking)
    one = subset(images, np.flatnonzero(images.labels == 3))
    assert f", {images.classes[5]} and 4 more classes: " in validation_warning(one)


def test_fraction_keeps_the_same_images_and_lists_them(folder):
    task = ClassificationTask(_recipe(folder, fraction=0.5))
    names = task.files()["train_images.txt"].split()
    assert len(names) == 18
    assert ClassificationTask(_recipe(folder, fraction=0.5, seed=9)).files()["train_images.txt"].split() == names


def test_a_share_of_the_images_is_trained_on_as_long_as_all(folder, tmp_path, monkeypatch):
    """The same batch, rates, number of samples and evaluations; the kept images share the samples evenly."""
    logs, samples = {}, {}
    for fraction in (1.0, 0.34):
        recipe = _recipe(folder, fraction=fraction, epochs=3.0, batch=32, warmup_epochs=0.5, eval_every=0.5, repeats=1)
        run = RunFolder(tmp_path / str(fraction))
        assert train(recipe, run, fit_batch=True)["steps"] == 3 * (36 // 8)
        assert run.recipe().batch == 8
        logs[fraction] = [(line["kind"], line["step"], line["epoch"], line.get("lr")) for line in run.metrics()]
        task = ClassificationTask(run.recipe())
        samples[fraction] = [name for step in range(12) for name in task.sample_names(step)]
    assert logs[1.0] == logs[0.34]
    assert len(samples[0.34]) == len(samples[1.0]) == 12 * 8
    shown = np.unique(samples[0.34], return_counts=True)[1]
    assert len(shown) == 12
    # 12 of the 108 samples fall to the rest that each epoch drops.
    assert shown.min() >= 8 - 3
    assert shown.max() <= 9
    assert "12 training images kept, an epoch still shows 36" in ClassificationTask(run.recipe()).describe()[0]


def test_a_share_is_resumed_in_the_middle_of_a_pass(folder):
    task = ClassificationTask(_recipe(folder, fraction=0.5, batch=8, resident="on"))
    context = ProcessContext(CPU, micro_batch=8)
    whole, part = task.feed(0, context), task.feed(3, context)
    for _ in range(3):
        next(whole)
    for _ in range(7):
        (one,), (other,) = next(whole), next(part)
        assert torch.equal(one["keys"], other["keys"])
        assert torch.equal(one["indices"], other["indices"])


def test_a_run_that_counted_epochs_of_a_share_is_used_but_not_resumed(folder, tmp_path):
    run = RunFolder(tmp_path / "run")
    recipe = _recipe(folder, fraction=0.5, epochs=1.0, warmup_epochs=0.5)
    train(recipe, run)
    recorded = run.read_json(DATA)
    assert recorded.pop("whole_train") == 36
    run.write_json(DATA, {**recorded, "whole_train": 37})
    with pytest.raises(ValueError, match="has other images or labels in whole_train"):
        train(recipe, run)
    run.write_json(DATA, recorded)  # as earlier versions wrote it
    with pytest.raises(ValueError, match=r"over the images that fraction 0\.5 keeps, .* to train, start a new run"):
        train(recipe, run)
    assert not evaluate(run.path, split="val", device="cpu").notes


def test_report_is_complete_and_harmless(run):
    page = (run / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"src=\"(?!data:)", page)
    links = re.findall(r"href=\"([^\"]*)\"", page)
    assert {"config.yaml", "metrics.jsonl", "done.json"} <= set(links)
    assert all((run / link).exists() and ":" not in link for link in links)
    assert page.count("data:image/png;base64,") >= 5
    for name in ("results", "confusion_matrix", "gates", "nonlocality", "attention_maps"):
        with Image.open(run / f"{name}.png") as picture:
            width, height = picture.size
        assert width > 200
        assert height > 150


def test_the_report_says_what_was_trained_and_how_to_read_it(run):
    page = (run / "report.html").read_text()
    assert "<h1>convit_nano_32 (width=36, depth=2, num_gated_blocks=1, patch_size=4) at 8 px on " in page
    assert re.search(r"<td>selected on val</td><td>top-1 \d+\.\d %</td>", page)
    captions = re.findall(r"<figcaption><b>(.*?)\.</b> (.*?)</figcaption>", page)
    assert [name for name, _ in captions][:2] == ["Results", "Confusion matrix"]
    assert len(captions) == page.count("<img ")
    assert all(len(caption) > 40 for _, caption in captions)
    assert "flat lines are expected" in dict(captions)["Gates"]


def test_attention_is_shown_for_several_classes_from_a_marked_patch(folder, monkeypatch):
    drawn = {}

    def record(pictures, titles, columns, marks):
        drawn.update(pictures=pictures, titles=titles, columns=columns, marks=marks)
        return b""

    task = ClassificationTask(_recipe(folder, image_size=12))
    monkeypatch.setattr(image_report.plots, "picture_grid", record)
    assert image_report.attention_page(task.build_model(), task.data, ProcessContext(CPU)) is not None
    assert drawn["titles"][::3] == list(task.data.classes)
    assert drawn["columns"] == 3
    # A grid of 3×3 patches of 4 pixels: the query is the one in the middle.
    assert drawn["pictures"][0].shape == (12, 12, 3)
    assert drawn["pictures"][1].shape == (3, 3)
    assert drawn["marks"][:3] == [(4, 4, 4), (1, 1, 1), (1, 1, 1)]


def test_a_network_without_attention_has_no_attention_maps(folder):
    task = ClassificationTask(_recipe(folder, model="resnet26", model_options={}, patch_size=0, image_size=33))
    assert image_report.attention_page(task.build_model(), task.data, ProcessContext(CPU)) is None


def test_the_record_of_a_run_has_no_private_paths(run, monkeypatch):
    environment = (run / "env.json").read_text()
    record = json.loads(environment)
    assert record["packages"]["torch"] == torch.__version__.split("+")[0] or record["packages"]["torch"]
    assert "/" not in environment.replace("Linux", "")


def look(run, pictures, top):
    return list(Classifier(run, "cpu").predict(pictures, PredictOptions(top=top)))


def shares(prediction):
    """(class, share), the likeliest first."""
    return list(prediction.record["classes"].items())


def test_evaluating_and_predicting_with_a_run(run, folder):
    own = evaluate(run, device="cpu")
    assert own.split == "val"
    assert "3 classes" in own.origin
    assert own.notes == ()
    selected = json.loads((run / "done.json").read_text())["selected"]["value"]
    assert own.values["top1"] == pytest.approx(selected)
    broken = run.parent / "broken.png"
    broken.write_bytes(b"no")
    predictions = look(run, [folder / "val" / "amber", broken], 2)
    assert [bool(one.problem) for one in predictions] == [False] * 4 + [True]
    for one in predictions[:4]:
        assert len(shares(one)) == 2
        assert shares(one)[0][1] >= shares(one)[1][1]


def test_predictions_agree_with_evaluation(run, folder):
    values = evaluate(run, device="cpu").values
    predictions = look(run, [folder / "val"], 1)
    right = [shares(one)[0][0] == one.name.split("/")[-2] for one in predictions]
    assert 100 * np.mean(right) == pytest.approx(values["top1"])


def test_other_data_is_measured_whole(run, folder, tmp_path):
    values = evaluate(run, device="cpu").values
    whole = evaluate(run, str(folder / "val"), device="cpu")  # one folder of classes, nothing held out
    assert whole.origin.endswith(": all 12 images")
    assert whole.split == "all"
    assert whole.values == pytest.approx(values)
    assert evaluate(run, str(folder), split="train", device="cpu").origin.endswith(": 36 images of train")
    two = tmp_path / "two"  # the first two of three classes, in a folder that has all three
    train(_recipe(folder, resident="on", epochs=1.0, first_classes=2), RunFolder(two))
    both = evaluate(two, str(folder), split="val", device="cpu").values
    assert both == pytest.approx(evaluate(two, split="val", device="cpu").values)
    few = tmp_path / "few"  # fewer images than a batch, and not of every class
    (few / "blue").mkdir(parents=True)
    shutil.copy(folder / "val" / "blue" / "000.png", few / "blue")
    (few / "amber").mkdir()
    shutil.copy(folder / "val" / "amber" / "000.png", few / "amber")
    (prediction,) = look(run, [few / "blue" / "000.png"], 1)
    (other,) = look(run, [few / "amber" / "000.png"], 1)
    right = (shares(prediction)[0][0] == "blue") + (shares(other)[0][0] == "amber")
    assert evaluate(run, str(few), device="cpu").values["top1"] == pytest.approx(50 * right)


def test_unreadable_images_of_every_split_are_named(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "pictures")
    (broken / "val" / "amber" / "000.png").write_bytes(b"no picture")
    run = tmp_path / "run"
    summary = train(_recipe(broken, resident="on", epochs=1.0), RunFolder(run))
    (problem,) = summary["problems"]
    assert problem.startswith("val: amber/000.png: ")
    found = evaluate(run, device="cpu")
    (note,) = found.notes
    assert problem.removeprefix("val: ") in note
    assert RunFolder(run).was_trained_on(found.fingerprints)
    (broken / "val" / "amber" / "001.png").unlink()
    assert not RunFolder(run).was_trained_on(evaluate(run, device="cpu").fingerprints)


def test_other_classes_are_refused(run, tmp_path):
    other = make_folder(tmp_path / "other", classes=("amber", "blue", "dove"))
    with pytest.raises(ValueError, match=r"does not have the run's classes: .*: dove"):
        evaluate(run, str(other))
    with pytest.raises(ValueError, match="has no test split, but train, val"):
        evaluate(run, split="test")
    with pytest.raises(ValueError, match="is not a run"):
        evaluate(tmp_path)


@pytest.mark.parametrize(("kind", "model"), [("hard", "convit_nano_32_distilled"), ("soft", "deit_nano_32")])
def test_learning_from_another_run(run, folder, tmp_path, kind, model):
    options = {"width": 36, "depth": 2}
    if "convit" in model:
        options["num_gated_blocks"] = 1
    recipe = _recipe(
        folder, model=model, model_options=options, teacher=str(run), distillation=kind, epochs=1.0, warmup_epochs=0.2
    )
    task = ClassificationTask(recipe)
    feed = task.feed(0, ProcessContext(CPU, micro_batch=6))
    batch = task.prepare(next(feed)[0], torch.tensor(0), 0)
    assert batch.targets.teacher.shape == (6, 3)
    module = task.training_module(task.build_model())
    outputs = module(batch.inputs)
    assert isinstance(outputs, tuple) == (kind == "hard")
    by_teacher = outputs[1] if kind == "hard" else outputs
    alone = dataclasses.replace(recipe, distill_weight=1.0)
    task.recipe = alone
    if kind == "hard":
        expected = torch.nn.functional.cross_entropy(by_teacher, batch.targets.teacher.argmax(1))
    else:
        tau = recipe.distill_temperature
        p = (batch.targets.teacher / tau).softmax(1)
        expected = (p * (p.log() - (by_teacher / tau).log_softmax(1))).sum(1).mean() * tau**2
    torch.testing.assert_close(task.loss(outputs, batch), expected)
    assert train(recipe, RunFolder(tmp_path / "student"))["selected"] is not None


def test_a_teacher_whose_weights_were_replaced_is_another_teacher(folder, tmp_path):
    recipe = _recipe(folder, model="deit_nano_32", model_options={"width": 36, "depth": 1}, epochs=1.0)
    weights, pupil = build_classifier(recipe, 3).state_dict(), RunFolder(tmp_path / "pupil")
    own = tmp_path / "teacher"
    train(recipe, RunFolder(own))
    recipe = recipe.with_changes(teacher=str(own), distillation="soft")
    train(recipe, pupil)
    recorded = pupil.read_json("data.json")
    store = RunFolder(own).checkpoints()
    (step,) = {store.pointed("best")}
    shutil.rmtree(store.path(step))
    store.save(step, {"model": weights}, {"best": {"step": step, "weights": "model"}})
    longer = recipe.with_changes(epochs=2.0)
    with pytest.raises(ValueError, match="the weights of the teacher changed since the run was started"):
        train(longer, pupil, override=True)
    pupil.write_json("data.json", {name: value for name, value in recorded.items() if name != "teacher"})
    train(longer, pupil, override=True)  # a record of an earlier version says nothing of the teacher
    assert pupil.read_json("data.json")["teacher"] != recorded["teacher"]


def test_a_teacher_of_other_classes_is_refused_before_any_work(run, tmp_path):
    other = make_folder(tmp_path / "other", classes=("amber", "blue", "dove"))
    recipe = _recipe(other, teacher=str(run), distillation="soft")
    with pytest.raises(ValueError, match=r"has other classes than the data; they differ in: .*dove"):
        train(recipe, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_public_teacher_sees_images_as_it_was_trained_to():
    wanted = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.5, 0.5))
    pixels = torch.rand(2, 3, 4, 5)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_STD))
    seen = Renormalised(torch.nn.Identity(), wanted, Preprocessing())((pixels - mean) / std)
    torch.testing.assert_close(seen, (pixels - 0.5) / torch.tensor([0.25, 0.5, 0.5]).view(3, 1, 1))


def test_a_run_goes_on_though_its_data_moved_and_what_it_started_from_is_gone(run, folder, tmp_path):
    data, first = shutil.copytree(folder, tmp_path / "here"), shutil.copytree(run, tmp_path / "first")
    recipe = _recipe(data, resident="on", epochs=1.0, weights=str(first))
    train(recipe, RunFolder(tmp_path / "run"))
    data.rename(tmp_path / "there")
    shutil.rmtree(first)
    longer = dataclasses.replace(recipe, data=str(tmp_path / "there"), epochs=2.0)
    assert train(longer, RunFolder(tmp_path / "run"), override=True)["steps"] == 12
    earlier = json.loads((tmp_path / "run" / "done.json").read_text())
    with pytest.raises(ValueError, match="use at least --epochs 2"):
        train(recipe.with_changes(data=longer.data), RunFolder(tmp_path / "run"), override=True)
    assert json.loads((tmp_path / "run" / "done.json").read_text()) == earlier


def test_a_detector_is_refused_by_name(folder):
    with pytest.raises(ValueError, match="retinanet_resnet26 is a model for detection, not for classification"):
        ClassificationTask(_recipe(folder, model="retinanet_resnet26", model_options={}, patch_size=0)).build_model()


def test_weights_of_another_kind_of_model_are_refused_by_name(run, folder):
    recipe = _recipe(folder, weights=str(run), model="deit_nano_32", model_options={"width": 36, "depth": 2})
    with pytest.raises(ValueError, match="is a run of convit_nano_32, whose weights do not fit deit_nano_32"):
        ClassificationTask(recipe).build_model()


def test_runs_of_two_tasks_are_not_compared(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "detector")
    recipe = named_recipe("retinanet_small")
    (other / "config.yaml").write_text(freeze(recipe))
    with pytest.raises(ValueError, match="different tasks have no measure in common"):
        compare_runs([run, other])
    for use in (lambda: evaluate(other), lambda: Classifier(other)):
        with pytest.raises(ValueError, match="is a run of detection, not of classification"):
            use()


def test_starting_from_another_runs_weights(run, folder, tmp_path):
    task = ClassificationTask(_recipe(folder, weights=str(run), first_classes=2))
    model = task.build_model()
    fresh = ClassificationTask(_recipe(folder)).build_model()
    trained = ClassificationTask(_recipe(folder, weights=str(run))).build_model()
    assert model.head.weight.shape[0] == 2  # a new head for other classes
    assert torch.equal(model.norm.weight, trained.norm.weight)
    assert not torch.equal(trained.norm.weight, fresh.norm.weight)


def test_comparing_runs(run, folder, tmp_path):
    paths = [run]
    for seed, model, options in ((1, "convit_nano_32", {"num_gated_blocks": 1}), (0, "deit_nano_32", {})):
        recipe = _recipe(
            folder,
            resident="on",
            epochs=2.0,
            seed=seed,
            model=model,
            model_options={"width": 36, "depth": 2, **options},
        )
        path = tmp_path / f"{model}-{seed}"
        train(recipe, RunFolder(path))
        paths.append(path)
    comparison = compare_runs(paths)
    assert comparison.measure == "selected on val"
    assert [setting.seeds for setting in comparison.settings] == [(0, 1), (0,)]
    assert comparison.settings[0].differs == {"model": "convit_nano_32", "model_options.num_gated_blocks": 1}
    assert [describe_setting(setting) for setting in comparison.settings] == [
        "convit_nano_32, num_gated_blocks=1",
        "deit_nano_32",
    ]
    assert comparison.quantity == task_kind("classification").selection
    assert comparison.title == "selected on val top-1 (%)"
    assert comparison.p_values == (None, None)  # one run on a side proves nothing
    assert comparison_plot(comparison).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="is given twice"):
        compare_runs([*paths, str(paths[0])])
    copied = compare_runs([*paths, shutil.copytree(run, tmp_path / "copy")])
    assert copied.settings == comparison.settings
    assert copied.notes == (f"{tmp_path / 'copy'} is left out: it has the settings and the seed of {run}",)
    assert comparison.notes == ()
    last = tmp_path / "last"
    train(_recipe(folder, resident="on", epochs=2.0, select="last"), RunFolder(last))
    assert [setting.differs for setting in compare_runs([run, last]).settings] == [
        {"select": "best"},
        {"select": "last"},
    ]
    moved = shutil.copytree(folder, tmp_path / "moved")
    train(_recipe(moved, resident="on", epochs=2.0, seed=7), RunFolder(tmp_path / "same data"))
    assert len(compare_runs([run, tmp_path / "same data"]).settings) == 1
    (moved / "val" / "amber" / "000.png").unlink()
    train(_recipe(moved, resident="on", epochs=2.0, seed=8), RunFolder(tmp_path / "other data"))
    both = compare_runs([tmp_path / "same data", tmp_path / "other data"]).settings
    assert [setting.differs["data"] for setting in both] == [str(moved), f"{moved} (changed, 2)"]
    with pytest.raises(ValueError, match="no measure 'test top1'"):
        compare_runs(paths, "test top1")
    with pytest.raises(ValueError, match="at least two"):
        compare_runs(paths[:1])


@pytest.mark.parametrize(
    ("differs", "label"),
    [
        ({}, "same settings"),
        ({"model_options.locality_strength": None}, "locality_strength=the model's own"),
        ({"decay_gates": True, "lr": 0.0005}, "decay_gates=yes, lr=0.0005"),
        ({"teacher": "", "lr": 1.0, "batch": 6, "epochs": 2.0, "ema": 0.5}, "teacher=none, lr=1, batch=6, 2 more"),
    ],
)
def test_labels_are_short(differs, label):
    assert describe_setting(Setting(differs, ("run",), (0,), (1.0,))) == label


def test_welchs_p():
    # Equal variances and sizes: t = −4.5826, 4 degrees of freedom; p from the t distribution's closed form for ν = 4.
    first, second = [1.0, 2.0, 3.0], [5.0, 6.0, 7.0]
    t2 = (4.0 / (2 / 3) ** 0.5) ** 2
    x = t2 / (4 + t2)
    expected = 1 - (1.5 * x**0.5 - 0.5 * x**1.5)
    assert welch_p(first, second) == pytest.approx(expected, rel=1e-9)
    assert welch_p([1.0], [2.0, 3.0]) is None
    assert welch_p([1.0, 1.0], [2.0, 2.0]) is None


def test_both_heads_of_a_sharded_model_can_be_called(tmp_path):
    """One process is enough to have parameters of FSDP2's own kind."""
    model = create_model("convit_tiny_distilled", img_size=32, patch_size=8, width=48, depth=3, num_gated_blocks=2)
    images = torch.randn(2, 3, 32, 32)
    expected = model.forward_distilled(images)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        shard(accelerate(model))
        found = BothHeads(model)(images)
        torch.testing.assert_close(found, expected)
        sum(logits.sum() for logits in found).backward()
        assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
        torch.testing.assert_close(model.eval()(images), (expected[0] + expected[1]) / 2)
    finally:
        dist.destroy_process_group()
