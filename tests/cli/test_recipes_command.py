"""What recipes set is shown where options are chosen: in train's help, and side by side."""

import pytest

from nearsight.classification.recipe import CLASSIFICATION_RECIPES
from nearsight.cli.listing import recipes
from nearsight.cli.verbs import app
from nearsight.recipes.files import named_recipe, resolve_recipe
from nearsight.tasks import task_kind


def rows(printed):
    return {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_the_default_is_what_train_starts_from():
    assert resolve_recipe() == named_recipe(task_kind("classification").default_recipe)


def test_every_recipe_side_by_side_where_they_differ(wide, capsys):
    recipes()
    printed = capsys.readouterr().out
    classification, detection = (rows(f"field {part}") for part in printed.split("\n field ")[1:])
    names = list(CLASSIFICATION_RECIPES)
    assert classification["field"] == names
    assert classification["batch"] == [str(named_recipe(name).batch) for name in names]
    assert "label_smoothing" not in classification  # all of them have 0.1
    assert detection["lr"] == ["0.12", "0.001"]


def test_one_recipe_whole(wide, capsys):
    recipes("deit")
    shown = rows(capsys.readouterr().out)
    assert set(named_recipe("small").as_dict()) <= shown.keys()
    assert shown["ema"] == ["0.99996"]
    assert shown["label_smoothing"] == ["0.1"]


def test_train_says_what_an_option_is_when_it_is_not_given(wide, capsys):
    app(["train", "--help"])
    printed = capsys.readouterr().out
    assert "those of the recipe small" in printed
    assert "[default: convit_micro_64]" in printed
    assert any("--epochs" in line and "[default: 100]" in line for line in printed.splitlines())


def test_resume_does_not_claim_a_recipes_values(wide, capsys):
    app(["resume", "--help"])
    printed = capsys.readouterr().out
    assert "--epochs" in printed
    assert "convit_micro_64" not in printed
