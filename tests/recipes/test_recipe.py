"""Recipes: checked when made, layered, read from files that may be hostile."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml

from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.detection.recipe import DetectionRecipe
from nearsight.recipes.fields import option
from nearsight.recipes.files import freeze, named_recipe, read_changes, resolve_recipe, thaw
from nearsight.recipes.recipe import Recipe, differences, field_names

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("kind", [ClassificationRecipe, DetectionRecipe])
def test_every_field_has_help_and_a_rule_for_resuming(kind):
    for field in dataclasses.fields(kind):
        assert len(field.metadata["help"]) > 10, field.name
        assert kind.change_rule(field.name) in ("never", "override", "free")


def test_the_papers_recipes():
    deit, convit, plus, sasa = (named_recipe(name) for name in ("deit", "convit", "convit_plus", "sasa"))
    for recipe in (deit, convit):
        assert (recipe.optimizer, recipe.epochs, recipe.batch, recipe.weight_decay) == ("adamw", 300, 1024, 0.05)
        assert recipe.peak_lr == pytest.approx(1e-3)
        assert (recipe.mixup, recipe.cutmix, recipe.label_smoothing, recipe.erasing) == (0.8, 1.0, 0.1, 0.25)
        assert (recipe.repeats, recipe.drop_path, recipe.randaugment_magnitude) == (3, 0.1, 9)
    assert (deit.ema, convit.ema) == (0.99996, 0)
    assert plus.peak_lr == pytest.approx(4e-4)
    assert (sasa.optimizer, sasa.epochs, sasa.peak_lr, sasa.ema) == ("sgd", 130, 1.6, 0.9999)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drop_path": 1.5}, "drop_path must be between 0 and 1, got 1.5"),
        ({"epochs": 3.0, "warmup_epochs": 5.0}, "warmup_epochs"),
        ({"image_size": 30, "patch_size": 4}, "not a multiple of patch_size 4"),
        ({"optimizer": "adam"}, "optimizer must be one of adamw, sgd; got 'adam'"),
        ({"batch": 16.5}, "batch must be a whole number, got 16.5"),
        ({"batch": True}, "batch must be a whole number, got True"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"epochs": float("inf")}, "epochs must be a finite number, got inf"),
        ({"eval_every": float("inf")}, "eval_every must be a finite number, got inf"),
        ({"model_options": {"num_classes": 2}}, "must leave out 'num_classes': it follows from the data"),
        ({"model_options": {"img_size": 32}}, "must leave out 'img_size': --image-size sets it"),
        ({"model_options": {1: 2}}, "must leave out 1: an argument's name is a word"),
        ({"batch": 33}, "pairs: batch 33 must be even"),
        ({"teacher": "runs/x"}, "belong together"),
        ({"distillation": "hard"}, "belong together"),
        ({"micro_batch": 48, "batch": 64}, "not a multiple of micro_batch 48"),
    ],
)
def test_bad_values_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        ClassificationRecipe(**changes)


def test_layers_flags_over_file_over_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: convit\nlr: 3e-4\nepochs: 50\nmodel_options: {locality_strength: 2}\n")
    recipe = resolve_recipe("", file, {"epochs": 60.0, "model_options": {"gate": 0.5}})
    assert set(differences(named_recipe("convit"), recipe)) == {"lr", "epochs", "model_options"}
    assert (recipe.lr, recipe.epochs) == (3e-4, 60.0)
    assert recipe.model_options == {"locality_strength": 2, "gate": 0.5}
    assert resolve_recipe("deit", file).ema == 0.99996  # a named recipe on the command line beats the file's


def test_frozen_recipes_come_back(tmp_path):
    recipe = named_recipe("sasa").with_changes(data="päth/with: odd # name", model_options={"kernel_size": 5})
    (tmp_path / "config.yaml").write_text(freeze(recipe), encoding="utf-8")
    assert thaw(tmp_path / "config.yaml") == recipe


def test_a_recipe_says_its_task_and_format(tmp_path):
    for name, kind in (("small", ClassificationRecipe), ("retinanet_small", DetectionRecipe)):
        text = freeze(named_recipe(name))
        assert yaml.safe_load(text)["format"] == 2
        assert yaml.safe_load(text)["task"] == kind.task
        (tmp_path / "config.yaml").write_text(text)
        assert type(thaw(tmp_path / "config.yaml")) is kind
        assert resolve_recipe("", tmp_path / "config.yaml") == named_recipe(name)
    (tmp_path / "config.yaml").write_text("format: 3\n")
    with pytest.raises(ValueError, match=r"has the format 3; this version of nearsight reads 2"):
        thaw(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("small", {"flip_vertical": 0.5}, "flip_vertical is for detection; classification does not read it"),
        ("small", {"image_height": 48}, "image_height is for detection; classification does not read it"),
        ("retinanet_small", {"mixup": 0.5}, "mixup is for classification; detection does not read it"),
        ("retinanet", {"teacher": "runs/x"}, "teacher is for classification; detection does not read it"),
    ],
)
def test_what_a_task_does_not_read_is_refused_by_name(tmp_path, recipe, changes, words):
    with pytest.raises(ValueError, match=f"^the command line: {words}$"):
        resolve_recipe(recipe, None, changes)
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({"recipe": recipe, **changes}))
    with pytest.raises(ValueError, match=f"recipe.yaml: {words}$"):
        resolve_recipe("", file)
    task, own = ("classification", {"mixup": 0.5}) if recipe == "small" else ("detection", {"flip_vertical": 0.5})
    file.write_text(yaml.safe_dump({"task": task, **own, **changes}))  # some fields of each task, which no run froze
    with pytest.raises(ValueError, match=f"recipe.yaml: {words}$"):
        resolve_recipe("", file)
    (tmp_path / "config.yaml").write_text(freeze(named_recipe(recipe)) + yaml.safe_dump(changes))
    with pytest.raises(ValueError, match=f"config.yaml: {words}$"):
        thaw(tmp_path / "config.yaml")


def test_the_file_or_the_data_name_the_task(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("task: detection\nepochs: 20\n")
    assert resolve_recipe("", file) == named_recipe("retinanet_small").with_changes(epochs=20.0)
    assert resolve_recipe("", None, {"data": "bccd"}).task == "detection"
    assert resolve_recipe("", None, {"data": "clothing"}).task == "classification"
    with pytest.raises(ValueError, match="its task is detection, but the recipe 'small' is for classification"):
        resolve_recipe("small", file)
    file.write_text("task: regression\n")
    with pytest.raises(ValueError, match="there is no task 'regression'; the tasks are classification, detection"):
        resolve_recipe("", file)
    with pytest.raises(ValueError, match=r"recipe\.yaml: there is no task 'regression'"):  # as in a run's folder
        thaw(file)


FIRST_FORMAT = Path(__file__).with_name("first_format")


@pytest.mark.parametrize("kind", [ClassificationRecipe, DetectionRecipe])
def test_files_of_the_first_format_are_read(kind):
    """Each had the 75 fields of both tasks."""
    file = FIRST_FORMAT / f"{kind.task}.yaml"
    stored = yaml.safe_load(file.read_text())
    recipe = thaw(file)
    assert type(recipe) is kind
    assert resolve_recipe("", file) == recipe
    own = recipe.as_dict()
    assert len(stored) == 75
    added = {
        "val_from": "data", "norm_decay": 0.0, "weights": stored.pop("init_from"), "mean": "auto", "std": "auto",
        "layer_decay": 1.0, "head_rate": 1.0, "frozen_epochs": 0.0, "patience": 0.0,
    }  # fmt: skip
    if kind is ClassificationRecipe:
        added |= {
            "label_column": "",
            "class_weights": "none",
            "sampling": "shuffled",
            "select_by": "top1",
            "interpolation": "auto",
        }
    assert own.keys() - stored.keys() == added.keys()
    assert {name: value for name, value in own.items() if name != "model_options"} == {
        **{name: stored[name] for name in own.keys() & stored.keys() if name != "model_options"}, **added,
    }  # fmt: skip
    if kind is DetectionRecipe:  # names have the same meaning in all models now
        options = stored["model_options"]
        assert own["model_options"]["head_attention"] == options["attention"]
        assert own["model_options"]["attention"] == options["backbone_attention"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch: 3\n", "there is no field 'epoch'; did you mean 'epochs'"),
        ("lr: [1, 2]\n", "lr must be a number"),
        ("- lr\n", "mapping"),
        ("model_options: [1]\n", r"model_options must be a mapping, got \[1\]"),
        ("model_options:\n", "model_options must be a mapping, got None"),
        ("lr: 1e-3\nepochs: 3\nlr: 2\n", "line 3: 'lr' is there twice"),
        ("model_options: {width: 8, width: 9}\n", "line 1: 'width' is there twice"),
        ("data: 2024-13-45\n", "not a plain YAML recipe: month"),
        ("lr: !!python/object/apply:os.system ['touch /tmp/nearsight-owned']\n", "not a plain YAML recipe"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases"),
        ("lr: 1\n" * 200_000, "larger than 1048576 bytes"),
        ("[" * 5000, "not a plain YAML recipe"),
        ("data: 'a\n", "not a plain YAML recipe"),
        ("? {a: b}\n: 3\n", "YAML|mapping"),
    ],
)
def test_hostile_files_are_refused(tmp_path, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        resolve_recipe("small", file)
    assert not Path("/tmp/nearsight-owned").exists()


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="cannot read the recipe"):
        resolve_recipe("small", tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"data: \xff\xfe\n")
    with pytest.raises(ValueError, match="not a plain YAML recipe"):
        resolve_recipe("small", tmp_path / "latin.yaml")
    with pytest.raises(ValueError, match="there is no recipe 'tiny'"):
        resolve_recipe("tiny")


def test_there_are_experiments():
    assert len(EXPERIMENTS) >= 4


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_builds(file):
    recipe = resolve_recipe("", file)
    text = file.read_text()
    for heading in ("# Command", "# Hardware", "# Time", "# Expected"):
        assert heading in text, f"{file.name} does not say {heading[2:]}"
    assert f"recipes/{file.name}" in text
    assert yaml.safe_load(text)["model"] == recipe.model
    if recipe.task == "classification":
        with torch.device("meta"):
            model = build_classifier(recipe, num_classes=10)
        assert sum(parameter.numel() for parameter in model.parameters()) > 0


def _timm(name: str, **changes) -> torch.nn.Module:
    settings = {"model": f"timm:{name}", "image_size": 32, "drop_path": 0.0}
    return build_classifier(ClassificationRecipe(**{**settings, **changes}), num_classes=3)


def test_timm_models_take_our_images_and_what_else_they_can():
    small = {"depth": 2, "embed_dim": 24}
    model = _timm("vit_tiny_patch16_224", model_options=small, drop_path=0.2)
    assert model.training
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert model.blocks[1].drop_path1.drop_prob == pytest.approx(0.2)
    with torch.device("meta"):  # wide layers that nobody fills
        assert _timm("vgg11").head.fc.out_features == 3
        with pytest.warns(UserWarning, match=r"timm:vgg11 cannot drop paths: drop_path 0\.1 is left out"):
            _timm("vgg11", drop_path=0.1)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("no_such_model", {}, "timm cannot build 'no_such_model'"),
        ("resnet10t", {"model_options": {"bogus": 1}}, "timm cannot build 'resnet10t'.*'bogus'"),
        ("vit_tiny_patch16_224", {"image_size": 8}, r"timm:vit_tiny_patch16_224 does not take images of 8×8 pixels"),
        ("resnet10t", {"model_options": {"drop_path_rate": 0.1, "nothing": 2}}, "'nothing'"),
    ],
)
def test_timm_models_that_cannot_be_built_are_named(name, changes, words):
    with pytest.raises(ValueError, match=words):
        _timm(name, **changes)


def test_read_changes_of_an_empty_file(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_changes(tmp_path / "empty.yaml") == {}


def test_a_short_trial_warms_up_for_a_tenth_unless_told_otherwise():
    assert resolve_recipe("small", None, {"epochs": 2.0}).warmup_epochs == 0.2
    assert resolve_recipe("small", None, {"epochs": 50.0}).warmup_epochs == named_recipe("small").warmup_epochs
    with pytest.raises(ValueError, match="set --warmup-epochs"):
        resolve_recipe("small", None, {"epochs": 2.0, "warmup_epochs": 3.0})
    for bad in ({"epochs": -3.0}, {"epochs": 0.0}, {"lr": 0.0}):
        with pytest.raises(ValueError, match=f"^{next(iter(bad))}|: {next(iter(bad))}"):
            resolve_recipe("small", None, bad)


def test_a_file_of_few_epochs_warms_up_briefly_too(tmp_path):
    file = tmp_path / "trial.yaml"
    file.write_text("epochs: 2\n")
    assert resolve_recipe("small", file).warmup_epochs == 0.2
    assert resolve_recipe("small", file, {"warmup_epochs": 0.0}).warmup_epochs == 0
    longer = resolve_recipe("small", file, {"epochs": 50.0})
    assert (longer.epochs, longer.warmup_epochs) == (50, named_recipe("small").warmup_epochs)


def test_words_that_yaml_takes_for_truth_values_are_words(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("resident: off\ncompile: on\n")
    recipe = resolve_recipe("small", file)
    assert (recipe.resident, recipe.compile) == ("off", "on")
    with pytest.raises(ValueError, match="select must be a word, got True"):
        resolve_recipe("small", flags={"select": True})


def test_bad_yaml_is_told_by_its_line(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("epochs: 3\nmodel: x: y\n")
    with pytest.raises(ValueError, match=r"is not a plain YAML recipe: line 2: mapping values are not allowed here$"):
        read_changes(file)


def test_fields_that_change_results_tell_settings_apart():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Thresholds(Recipe):
        threshold: float = option(0.5, "from where on a label is said", change="free", compared=True)
        printed: int = option(5, "how many labels are printed", change="free")

    compared = {name for name in field_names(Thresholds) if Thresholds.is_compared(name)}
    assert {"threshold", "lr", "model", "select", "micro_batch"} <= compared
    assert not {"printed", "seed", "workers", "report"} & compared
