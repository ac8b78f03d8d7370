"""Detection through the engine: learning, resuming, warm starts, and the verbs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import CycloptsError
from PIL import Image
from verbs import nearsight

from nearsight.classification.model import build_classifier
from nearsight.detection.coco_metrics import Found, Truth
from nearsight.detection.model import build_detector, with_weights
from nearsight.detection.report import draw_boxes
from nearsight.detection.sources import open_detection
from nearsight.detection.task import DetectionTask, compared
from nearsight.detection.use import Detector, evaluate
from nearsight.engine.task import ProcessContext
from nearsight.engine.training import train
from nearsight.models import create_model
from nearsight.nn import LocalSelfAttention2d
from nearsight.recipes.files import apply_changes, freeze, named_recipe
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import PreemptedError
from nearsight.runs.folder import RunFolder

TINY = {"layers": (1, 1, 1, 1), "width_multiplier": 0.25, "channels": 16, "head_depth": 1, "smallest_anchor": 16}


def bundled_folder():
    return open_detection("bccd").train.root.parent


CPU = ProcessContext(torch.device("cpu"), micro_batch=6)


def tiny_recipe(**changes):
    settings = {
        "data": "bccd",
        "model": "retinanet_resnet26",
        "model_options": {**TINY, "layers": [1, 1, 1, 1]},
        "image_size": 96,
        "image_height": 64,
        "batch": 6,
        "lr_batch": 6,
        "epochs": 1.0,
        "warmup_epochs": 0.2,
        "eval_every": 1.0,
        "device": "cpu",
        "compile": "off",
        "report": False,
        "log_every": 2,
        "channels_last": False,
    }
    return named_recipe("retinanet_small").with_changes(**{**settings, **changes})


def test_the_papers_recipe():
    recipe = named_recipe("retinanet")
    assert (recipe.epochs, recipe.peak_lr, recipe.batch, recipe.warmup_epochs, recipe.image_size) == (
        150,
        0.12,
        64,
        1,
        640,
    )


def test_a_run_from_start_to_report(tmp_path):
    summary = train(tiny_recipe(report=True), RunFolder(tmp_path / "run"))
    assert summary["steps"] == 6
    assert {"mAP", "mAP50", "mAP75", "mAP_small", "mAP_medium", "mAP_large"} <= set(summary["test"])
    records = RunFolder(tmp_path / "run").metrics()
    assert records[0]["loss"] > records[-2]["loss"]
    assert json.loads((tmp_path / "run" / "categories.json").read_text())[1] == {"id": 1, "name": "WBC"}


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    recipe = tiny_recipe(save_every=1)
    train(recipe, RunFolder(tmp_path / "whole"))
    calls = []
    original = DetectionTask.loss

    def interrupted(self, outputs, batch):
        calls.append(1)
        if len(calls) == 4:
            raise PreemptedError("stopped in the middle")
        return original(self, outputs, batch)

    monkeypatch.setattr(DetectionTask, "loss", interrupted)
    with pytest.raises(PreemptedError):
        train(recipe, RunFolder(tmp_path / "halves"))
    monkeypatch.setattr(DetectionTask, "loss", original)
    train(recipe, RunFolder(tmp_path / "halves"))
    whole, halves = (RunFolder(tmp_path / name).checkpoints().load_named("last") for name in ("whole", "halves"))
    assert whole.step == halves.step == 6
    for group, tensors in whole.tensors.items():
        for name, value in tensors.items():
            assert torch.equal(value, halves.tensors[group][name]), (group, name)


def test_streamed_and_resident_learn_from_the_same_boxes():
    resident, streamed = (DetectionTask(tiny_recipe(resident=wish, workers=0)) for wish in ("on", "off"))
    one, other = (next(task.feed(3, CPU))[0] for task in (resident, streamed))
    assert torch.equal(one["boxes"], other["boxes"])
    assert torch.equal(one["labels"], other["labels"])
    first, second = (task.prepare(inputs, torch.tensor(3), 0) for task, inputs in ((resident, one), (streamed, other)))
    assert first.inputs.shape == second.inputs.shape == (6, 3, 64, 96)
    assert (first.inputs - second.inputs).abs().mean() < 0.05 * second.inputs.std()


def test_evaluation_of_perfect_detections_is_one(monkeypatch):
    task = DetectionTask(tiny_recipe())
    images = task.data.split("val")

    def perfect(model, split, context):
        for index in range(len(images)):
            own = images.annotations(index)
            sizes = np.concatenate((own.boxes[:, :2], own.boxes[:, 2:] - own.boxes[:, :2]), axis=1)
            yield index, Found(sizes, np.linspace(0.9, 0.8, len(sizes)), own.labels)

    monkeypatch.setattr(task, "detections", perfect)
    values = dict(task.evaluate(torch.nn.Identity(), "val", CPU))
    assert values["mAP"] == pytest.approx(1.0, abs=1e-6)


def test_detections_are_in_pixels_of_the_image(monkeypatch):
    """A box found in the picture at a third of the size comes back three times as large."""
    task = DetectionTask(tiny_recipe(image_size=320 // 2, image_height=240 // 2))
    from nearsight.detection import task as detection
    from nearsight.detection.outputs import Detections

    one = Detections(torch.tensor([[10.0, 20.0, 30.0, 60.0]]), torch.tensor([0.5]), torch.tensor([2]))
    monkeypatch.setattr(detection, "postprocess", lambda outputs, sizes: [one] * len(sizes))
    _, found = next(iter(task.detections(torch.nn.Identity(), "val", CPU)))
    assert found.boxes.tolist() == [[20, 40, 40, 80]]
    assert found.labels.tolist() == [2]


def test_warm_start_from_a_classifier(tmp_path):
    from safetensors.torch import save_file

    classifier = create_model("resnet26", num_classes=7, layers=(1, 1, 1, 1), width_multiplier=0.25)
    path = tmp_path / "classifier.safetensors"
    save_file(classifier.state_dict(), path)
    detector = build_detector(tiny_recipe(weights=str(path)), 3)
    assert torch.equal(detector.backbone.layer3[0].mixer.weight, classifier.layer3[0].mixer.weight)
    with pytest.raises(ValueError, match="does not fit the model"):
        build_detector(tiny_recipe(weights=str(path), model="retinanet_sasa_resnet26"), 3)


def test_warm_start_takes_the_sizes_of_the_classification_run(tmp_path):
    run = tmp_path / "classifier-1"
    run.mkdir()
    options = {"depth": 2, "num_gated_blocks": 1, "pos_embed": True}
    body = named_recipe("small").with_changes(
        model="convit_tiny", image_size=64, patch_size=8, model_options=options, data="clothing"
    )
    (run / "config.yaml").write_text(freeze(body))
    classifier = build_classifier(body, 7)
    store = CheckpointStore(run / "checkpoints", keep=1)
    store.save(1, {"model": classifier.state_dict()}, {})
    store.point("best", 1)
    given = tiny_recipe(
        model="retinanet_convit_tiny", model_options={"channels": 16, "head_depth": 1}, weights=str(run)
    )
    detector = RunFolder(tmp_path / "detector")
    recipe = with_weights(given, detector)
    assert recipe.model_options == {"patch_size": 8, **options, "channels": 16, "head_depth": 1}
    body = build_detector(recipe, 3).backbone.vit
    assert torch.equal(body.blocks[1].attn.qkv.weight, classifier.blocks[1].attn.qkv.weight)
    classifier.set_input_size(body.img_size)  # learned on 8×8 patches, kept as 28×28
    assert torch.equal(body.pos_embed, classifier.pos_embed)
    other = tiny_recipe(weights=str(run))  # another backbone: its options are not this one's
    assert with_weights(other, detector).model_options == other.model_options
    with pytest.raises(ValueError, match="is a run of convit_tiny, whose weights do not fit retinanet_resnet26"):
        build_detector(other, 3)
    detector.path.mkdir()
    detector.write_text("config.yaml", freeze(recipe))
    shutil.rmtree(run)  # the detector's own record is enough
    assert with_weights(given, detector) == recipe


def test_warm_start_takes_the_attention_of_the_classification_run(tmp_path):
    run = tmp_path / "classifier"
    run.mkdir()
    options = {"width_multiplier": 0.25, "attention": {"border": "zeros"}}
    body = named_recipe("small").with_changes(model="sasa_resnet26_convstem", model_options=options, data="clothing")
    (run / "config.yaml").write_text(freeze(body))
    given = tiny_recipe(
        model="retinanet_sasa_resnet26_convstem_attention_heads",
        model_options={"channels": 16, "head_depth": 1, "head_attention": {"border": "mask"}},
        weights=str(run),
    )
    recipe = with_weights(given, RunFolder(tmp_path / "detector"))
    detector = build_detector(recipe.with_changes(weights=""), 3)
    layers = {
        part: {layer.border for layer in getattr(detector, part).modules() if isinstance(layer, LocalSelfAttention2d)}
        for part in ("backbone", "heads")
    }
    assert layers == {"backbone": {"zeros"}, "heads": {"mask"}}


def test_warm_start_from_a_detector_of_other_classes(tmp_path):
    from safetensors.torch import save_file

    other = create_model("retinanet_resnet26", num_classes=5, **TINY)
    path = tmp_path / "detector.safetensors"
    save_file(other.state_dict(), path)
    detector = build_detector(tiny_recipe(weights=str(path)), 3)
    assert torch.equal(detector.heads.boxes.predictor.weight, other.heads.boxes.predictor.weight)
    assert detector.heads.classes.predictor.weight.shape[0] == 3 * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 64}, "batch 64 is larger than the 36 training images"),
        ({"first_classes": 2}, "first_classes is for classification; detection does not read it"),
        ({"teacher": "timm:resnet18", "distillation": "hard"}, "teacher is for classification; detection does not"),
        ({"smallest_scale": 2.0}, r"smallest_scale \(2\) must not be above largest_scale \(1.3\)"),
        ({"smallest_scale": 0.0}, "smallest_scale must be above 0"),
        ({"image_height": -5}, "image_height must be between 0 and 8192, got -5"),
        ({"model": "resnet26"}, "resnet26 is a model for classification, not for detection"),
    ],
)
def test_recipes_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DetectionTask(apply_changes(tiny_recipe(), changes, where="the command line")).build_model()


def test_a_fraction_keeps_as_many_updates():
    task, whole = (DetectionTask(tiny_recipe(fraction=fraction)) for fraction in (0.5, 1.0))
    assert len(task.data.splits.train) == 18
    assert task.steps_per_epoch == whole.steps_per_epoch == 6
    assert len(task.data.order(0)) == 36


def test_drawing_marks_found_and_true_boxes():
    image = np.zeros((60, 80, 3), np.uint8)
    found = Found(np.array([[10.0, 10.0, 20.0, 30.0], [50.0, 5.0, 9.0, 9.0]]), np.array([0.9, 0.1]), np.array([0, 1]))
    truth = Truth(np.array([[40.0, 30.0, 20.0, 20.0]]), np.array([0]), np.array([0]), np.array([400.0]))
    drawn = np.asarray(draw_boxes(image, found, ("a", "b"), truth=truth))
    assert drawn[40, 20].any()
    assert not drawn[6, 51].any()
    assert (drawn[30, 45] == 255).all()


def test_labels_grow_with_the_image():
    found = Found(np.array([[100.0, 100.0, 3000.0, 2000.0]]), np.array([0.9]), np.array([0]))
    drawn = np.asarray(draw_boxes(np.zeros((3000, 4000, 3), np.uint8), found, ("cell",)))
    rows = (drawn[120:1000, 120:1000] != 0).any(axis=(1, 2)).sum()
    assert rows > 3000 / 100


def test_a_validation_set_that_cannot_be_read_ends_the_run():
    task = DetectionTask(tiny_recipe())
    with pytest.raises(ValueError, match="none of the 12 images to measure on could be read"):
        compared({}, task.data.split("val"))


def test_the_benchmark_on_bccd_runs(tmp_path):
    """A backbone that has learned to classify first, and the detector that starts from it."""
    pictures = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    split = {f"{name}_{what}": value for name in ("train", "val")
             for what, value in (("images", pictures), ("labels", np.arange(24) % 3))}  # fmt: skip
    np.savez(tmp_path / "pictures.npz", **split)
    script = Path(__file__).parents[2] / "benchmarks" / "bccd.py"
    small = "--width=96 --height=64 --channels=16 --head-depth=1 --width-multiplier=0.25 --batch=6 --epochs=0.5"
    command = [sys.executable, str(script), str(bundled_folder()), f"--out={tmp_path / 'out.json'}", "--device=cpu"]
    command += [*small.split(), "--eval-every=1", "--models", "retinanet_resnet26", "--seeds", "0"]
    command += [f"--pretrain={tmp_path / 'pictures.npz'}:32", "--pretrain-epochs=1", "--pretrain-batch=8"]
    subprocess.run(command, check=True, capture_output=True, timeout=150)
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["failures"] == []
    assert content["summary"]["retinanet_resnet26"]["n"] == 1
    assert content["runs"][0]["init_from"] == content["pretraining"]["resnet26"]["run"]
    assert 0 <= content["runs"][0]["test"]["mAP50"] <= 1


def train_verb(folder, data="bccd", **changes):
    options = "{layers: [1, 1, 1, 1], width_multiplier: 0.25, channels: 16, head_depth: 1, smallest_anchor: 16}"
    usual = {"model": "retinanet_resnet26", "model-options": options, "image-size": 96, "epochs": 1, "batch": 6}
    usual |= {"warmup-epochs": 0.1, "bad-images": 0.1, "device": "cpu", **changes}
    words = [f"--{name}={value}" for name, value in usual.items()]
    return nearsight("train", data, "--run", folder, "--no-report", "--no-channels-last", *words)


def refused(capsys, *words):
    """What is said of a mistake: one line, with exit code 2."""
    capsys.readouterr()
    with pytest.raises((SystemExit, ValueError)) as stopped:
        nearsight(*words)
    if isinstance(stopped.value, ValueError):
        return str(stopped.value)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detect") / "run"
    train_verb(folder)
    return folder


def test_the_verbs_eval_and_predict(finished_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    words = ("eval", finished_run, "--split", "test", "--results", tmp_path / "r.json", "--device", "cpu")
    assert nearsight(*words) == 0
    said = capsys.readouterr().out
    assert "test: mAP50 0." in said
    assert "Platelets: mAP " in said
    assert said.startswith("bccd: test, 12 images with ")
    results = json.loads((tmp_path / "r.json").read_text())
    assert all(set(entry) == {"image_id", "category_id", "bbox", "score"} for entry in results)
    picture = tmp_path / "in" / "a.png"
    picture.parent.mkdir()
    Image.fromarray(np.full((50, 70, 3), 128, np.uint8)).save(picture)
    (tmp_path / "in" / "b.png").write_bytes(b"broken")
    words = ("predict", finished_run, tmp_path / "in", "--out", tmp_path / "out", "--min-score", 0, "--device", "cpu")
    assert nearsight(*words) == 1  # one of the pictures is broken
    said = capsys.readouterr().out
    assert re.search(r"b\.png +│ unreadable: not an image", said)
    assert f"written to {tmp_path / 'out' / 'results.json'}" in said
    assert nearsight(*words, "--json") == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["problem"] is None
    assert "not an image" in second["problem"]
    with Image.open(tmp_path / "out" / "00001-a.png") as drawn:
        assert drawn.size == (70, 50)
    legend = json.loads((tmp_path / "out" / "results_images.json").read_text())
    assert [entry["id"] for entry in legend["images"]] == [1]
    assert [entry["name"] for entry in legend["categories"]] == ["RBC", "WBC", "Platelets"]
    boxes = np.array([entry["bbox"] for entry in json.loads((tmp_path / "out" / "results.json").read_text())])
    assert (boxes[:, 0] + boxes[:, 2] <= 70.001).all()


def test_eval_measures_what_training_measured(finished_run):
    values = evaluate(finished_run, split="val", device="cpu").values
    assert values["mAP"] == json.loads((finished_run / "done.json").read_text())["selected"]["value"]


def test_predictions_are_what_evaluations_find(finished_run):
    detector = Detector(finished_run, "cpu")
    torch.nn.init.zeros_(detector.model.heads.classes.predictor.bias)  # so that much is found
    task = DetectionTask(RunFolder(finished_run).recipe())
    images = task.data.split("val")
    found = detector.find([images.read(index) for index in range(8)])  # a whole batch of the evaluation
    expected = dict(task.detections(detector.model, "val", CPU))
    assert list(expected) == list(range(12))
    for index, one in enumerate(found):
        assert len(one.scores) == 100
        for ours, theirs in zip(one, expected[index], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_other_data_is_measured_whole(finished_run, tmp_path, capsys):
    source = bundled_folder()
    annotations = next(source.rglob("test.json"))
    other = shutil.copytree(source, tmp_path / "other")
    for path in other.rglob("*.json"):
        if path.name != annotations.name:
            path.unlink()
    (alone,) = other.rglob("*.json")
    for data, split in ((other, "test"), (alone, "train")):  # a file that names no part is all training images
        assert nearsight("eval", finished_run, data, "--device", "cpu") == 0
        assert f": {split}, 12 images with " in capsys.readouterr().out
    said = refused(capsys, "eval", finished_run, other, "--split", "val")
    assert "the data has no val split, but test; choose by --split" in said
    content = json.loads(alone.read_text())
    alone.write_text(json.dumps({**content, "annotations": []}))
    assert "its test split has no boxes to measure by" in refused(capsys, "eval", finished_run, other)


def test_images_that_cannot_be_read_are_named_at_the_end(finished_run, tmp_path, capsys):
    other = shutil.copytree(bundled_folder(), tmp_path / "other")
    splits = open_detection(other)
    for images in (splits.train, splits.val, splits.test):
        (images.root / images.names[0]).write_bytes(b"broken")
    assert nearsight("eval", finished_run, other, "--device", "cpu") == 0
    assert f"not read: {splits.val.names[0]}: not an image" in capsys.readouterr().out
    train_verb(tmp_path / "run", other)
    said = capsys.readouterr().out
    for prefix, images in (("", splits.train), ("val: ", splits.val), ("test: ", splits.test)):
        assert f"unreadable image: {prefix}{images.names[0]}: not an image" in said
    (annotations,) = other.rglob("val.json")
    content = json.loads(annotations.read_text())
    annotations.write_text(json.dumps({**content, "annotations": content["annotations"][1:]}))
    assert nearsight("eval", tmp_path / "run", "--device", "cpu") == 0
    assert "has changed since the run was trained on it" in capsys.readouterr().out


def test_an_automatic_batch_fits_the_images(tmp_path):
    train_verb(tmp_path / "run", batch="auto", recipe="retinanet", epochs=0.2)  # its batch is 64
    assert RunFolder(tmp_path / "run").recipe().batch == 8


def test_a_detector_takes_images_of_mixed_sizes_at_once(finished_run):
    detector = Detector(finished_run, "cpu")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (*size, 3)).astype(np.uint8) for size in ((40, 60), (90, 30))]
    together = detector.find(images, score_threshold=0.0)
    assert [len(one.scores) > 0 for one in together] == [True, True]
    for one, image in zip(together, images, strict=True):
        assert (one.boxes[:, :2] + one.boxes[:, 2:] <= np.array(image.shape[1::-1]) + 1e-6).all()


def test_the_demo_says_what_it_will_do_and_does_it(tmp_path, capsys):
    assert nearsight("demo", "--task", "detection", "--out", tmp_path / "demo", "--epochs", 1) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("a small RetinaNet learns to find blood cells in 36 pictures (1 epochs)")
    assert first.endswith(": about 13 seconds on two CPU cores")
    assert any(line.startswith("epoch 1.0  val mAP ") for line in rest)
    assert len(list((tmp_path / "demo" / "found").glob("*.png"))) == 4


def test_wrong_use_of_the_verbs(finished_run, tmp_path, capsys):
    assert "is not a run" in refused(capsys, "eval", tmp_path)
    said = refused(capsys, "eval", finished_run, "--split", "all")
    assert "the data has no all split, but train, val, test; choose by --split" in said
    said = refused(capsys, "eval", finished_run, "--results", Path(__file__) / "r.json")
    assert "--results: " in said
    assert "cannot be made a folder (" in said
    Image.new("RGB", (20, 20)).save(tmp_path / "a.jpg")
    said = refused(capsys, "predict", finished_run, tmp_path / "a.jpg", "--out", tmp_path / "a.jpg", "--device", "cpu")
    assert f"--out: {tmp_path / 'a.jpg'} cannot be made a folder (File exists); choose another" in said
    (tmp_path / "a.jpg").unlink()
    other = shutil.copytree(bundled_folder(), tmp_path / "other")
    (annotations,) = other.rglob("val.json")
    annotations.write_text(annotations.read_text().replace('"WBC"', '"worm"'))
    said = refused(capsys, "eval", finished_run, annotations, "--device", "cpu")
    assert "has the classes RBC, worm, Platelets, and the run finds RBC, WBC, Platelets; they must be the same" in said
    shutil.rmtree(other)
    with pytest.raises(CycloptsError, match="IMAGES"):
        nearsight("predict", finished_run)
    assert "no such file or folder" in refused(capsys, "predict", finished_run, tmp_path / "none.png")
    said = refused(capsys, "predict", finished_run, tmp_path)
    assert re.search(r"there is no picture in .*: it is empty", said)
    assert "min_score must be between 0 and 1" in refused(capsys, "predict", finished_run, "x.png", "--min-score", 2)


@pytest.mark.parametrize(
    "words", [("--model", "retinanet_resnet27"), ("--recipe", "small"), ("--task", "classification"), ("--batch", 1000)]
)
def test_a_users_mistake_is_one_line(words, tmp_path, capsys):
    assert refused(capsys, "train", "bccd", "--run", tmp_path / "run", "--device", "cpu", *words)


def test_the_parameters_of_the_run_that_one_starts_from_are_taken(tmp_path, capsys):
    """As options of the verb: what the classifier was built with need not be said again."""
    run = tmp_path / "classifier"
    words = ["--model", "resnet26", "--image-size", 32, "--epochs", 0.02, "--batch", 32, "--model-options.layers"]
    words += ["[1, 1, 1, 1]", "--model-options.width-multiplier", 0.25, "--no-report", "--device", "cpu"]
    assert nearsight("train", "clothing", "--run", run, *words) == 0
    words = ["--model", "retinanet_resnet26", "--weights", run, "--image-size", 96, "--epochs", 0.2, "--batch", 6]
    words += ["--model-options.channels", 16, "--model-options.head-depth", 1, "--no-report", "--device", "cpu"]
    assert nearsight("train", "bccd", "--run", tmp_path / "detector", *words) == 0
    options = RunFolder(tmp_path / "detector").recipe().model_options
    assert (options["layers"], options["width_multiplier"], options["channels"]) == ([1, 1, 1, 1], 0.25, 16)
