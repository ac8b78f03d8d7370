"""Arguments of a model on the command line keep their types."""

from importlib.metadata import version
from typing import Annotated

import pytest
from cyclopts import App, Parameter

from nearsight.cli.recipe_options import RecipeFlags, given_flags


def given(*words):
    app = App(result_action="return_value")

    @app.default
    def flags_of(*, flags: Annotated[RecipeFlags, Parameter(name="*")] = RecipeFlags()):  # noqa: B008
        return given_flags(flags)

    return app(list(words))


def test_numbers_words_switches_and_lists():
    words = ["--model-options.width_multiplier", "0.25", "--model-options.stem", "conv"]
    words += ["--model-options.attention_stages", "[3, 4]", "--model-options.train_gate", "false"]
    expected = {"width_multiplier": 0.25, "stem": "conv", "attention_stages": [3, 4], "train_gate": False}
    assert given(*words)["model_options"] == expected


@pytest.mark.skipif(version("cyclopts").startswith("4."), reason="the newest for Python 3.10 takes no object")
def test_all_options_as_one_object():
    assert given("--model-options", '{"width_multiplier": 0.25}') == {"model_options": {"width_multiplier": 0.25}}


def test_a_number_needs_no_point_and_half_a_list_is_named():
    assert given("--model-options.locality_strength", "1e-1")["model_options"] == {"locality_strength": 0.1}
    with pytest.raises(ValueError, match=r"--model-options\.stem '\[1' is not a plain value"):
        given("--model-options.stem", "[1")


def test_batch_auto_keeps_the_batch():
    assert given("--batch", "auto", "--lr", "3e-4") == {"batch_auto": True, "lr": 3e-4}
