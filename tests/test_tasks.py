"""Tasks are found by name and by their data; another one is added by a package of its own and `register`."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from typing import ClassVar

import pytest
from pictures import make_folder

from nearsight import tasks
from nearsight.detection.sources import open_detection
from nearsight.recipes.files import freeze, named_recipe, resolve_recipe, thaw
from nearsight.recipes.recipe import Recipe
from nearsight.tasks import refuse_models_of_others, register, task_kind, task_names, task_of_data


def test_kinds_are_found_by_name_without_torch():
    code = (
        "import sys; from nearsight.tasks import task_kind, task_of_data\n"
        "assert task_of_data('bccd').name == 'detection' and task_of_data('clothing').name == 'classification'\n"
        "assert task_kind('detection').default_recipe == 'retinanet_small'\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("name", task_names())
def test_a_kind_is_whole(name):
    kind = task_kind(name)
    assert kind.recipe.task == kind.name == name
    assert all(type(recipe) is kind.recipe for recipe in kind.recipes.values())
    assert kind.default_recipe in kind.recipes
    named = {recipe.model for recipe in kind.recipes.values()} - {""}  # a recipe may leave the network to the weights
    assert named <= set(kind.models())


def test_boxes_are_seen_at_a_glance(tmp_path):
    bccd = shutil.copytree(open_detection("bccd").train.root.parent, tmp_path / "bccd")
    (alone,) = list(bccd.rglob("train.json"))
    yolo, voc = tmp_path / "yolo", tmp_path / "voc"
    for folder, file in ((yolo, "labels/train/a.txt"), (voc, "Annotations/a.xml")):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("")
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", yolo)
    packed = shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "voc")
    for source in ("bccd", alone.parent, alone, yolo, voc, archive, packed):
        assert task_of_data(str(source)).name == "detection", source


def test_images_without_boxes_are_for_classification(tmp_path):
    pictures = make_folder(tmp_path / "pictures")
    archive = shutil.make_archive(str(tmp_path / "pictures"), "zip", pictures)
    (tmp_path / "damaged.zip").write_bytes(b"no archive")
    (tmp_path / "settings.json").write_text('{"a": 1}')
    for source in (pictures, archive, tmp_path / "damaged.zip", tmp_path / "settings.json", "clothing", "nowhere", ""):
        assert task_of_data(str(source)).name == "classification", source


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberRecipe(Recipe):
    task: ClassVar[str] = "number"


def test_another_task_is_registered(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "_KINDS", {})
    small = NumberRecipe(model="number", epochs=10.0)
    kind = dataclasses.replace(
        task_kind("classification"),
        name="number",
        recipe=NumberRecipe,
        recipes={"number_small": small},
        default_recipe="number_small",
        models=lambda: ["number"],
        recognises=lambda source: source.endswith(".numbers"),
    )
    register(kind)
    with pytest.raises(ValueError, match="there is a task 'number' already"):
        register(kind)
    with pytest.raises(ValueError, match="classification has a recipe 'small' already; give that of other another"):
        register(dataclasses.replace(kind, name="other", recipes={"small": small}, default_recipe="small"))
    assert task_names() == ("classification", "detection", "number")
    assert task_of_data("a.numbers") is kind
    assert named_recipe("number_small").task == "number"
    assert resolve_recipe("", None, {"data": "a.numbers"}) == small.with_changes(data="a.numbers")
    (tmp_path / "config.yaml").write_text(freeze(small))
    assert thaw(tmp_path / "config.yaml") == small
    with pytest.raises(ValueError, match="mixup is for classification; number does not read it"):
        resolve_recipe("number_small", None, {"mixup": 0.5})
    with pytest.raises(ValueError, match="number is a model for number, not for detection"):
        refuse_models_of_others("detection", "number")


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match="there is no task 'regression'; the tasks are classification, detection"):
        task_kind("regression")
