"""What was typed is read into options: of the task that the data, the recipe or the run is for."""

import dataclasses
import json

import pytest
from cyclopts import CycloptsError
from verbs import nearsight

from nearsight.cli.options import option_class, read_words
from nearsight.tasks import task_kind, task_names


def model_options(*words):
    return read_words(["data", *words]).model_options


def test_numbers_words_switches_and_lists():
    words = ["--model-options.width_multiplier", "0.25", "--model-options.stem=conv"]
    words += ["--model-options.attention-stages", "[3, 4]", "--model-options.train_gate", "false"]
    expected = {"width_multiplier": 0.25, "stem": "conv", "attention_stages": [3, 4], "train_gate": False}
    assert model_options(*words) == expected


def test_all_options_as_one_object():
    assert model_options("--model-options", '{"width_multiplier": 0.25}') == {"width_multiplier": 0.25}


def test_options_within_options():
    words = ["--model-options.attention.start", "local", "--model-options.attention.kernel-size", "5"]
    assert model_options(*words) == {"attention": {"start": "local", "kernel_size": 5}}


def test_numbers_need_no_point_and_may_be_negative():
    words = ["--model_options.locality_strength", "1e-1", "--model-options.offset", "-2"]
    assert model_options(*words) == {"locality_strength": 0.1, "offset": -2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model-options.stem", "[1"], r"--model-options\.stem '\[1' is not a plain value"),
        (["--model-options.stem"], r"--model-options\.stem needs a value"),
        (["--model-options.stem", "--lr", "3"], r"--model-options\.stem needs a value"),
        (["--model-options", "conv"], r"--model-options 'conv' is no mapping; name an argument of the model, as in "),
        (["--model-options.", "conv"], "the name of an argument is missing"),
        (["--model-options.a..b", "conv"], "the name of an argument is missing"),
        (["--model-options.a", "1", "--model-options.a.b", "2"], "a was given a value already"),
        (
            ["--set", "flip_vertical=0.5"],
            r"--set is gone: every field of .* is an option .*, --flip-vertical 0\.5",
        ),
        (["--set=lr=1"], r"--set is gone: .*, --lr 1"),
        (["--set"], r"--set is gone: .*, such as --flip-vertical 0\.5"),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        nearsight("train", "clothing", *words)


def test_the_first_word_that_is_no_value_is_the_data():
    for words in (
        ["pics", "--epochs", "3"],
        ["--epochs", "3", "pics"],
        ["--no-report", "--lr=3", "pics"],
        ["--", "pics"],
    ):
        assert read_words(words).positional == "pics"
    assert read_words(["--epochs", "3"]).positional == ""


@pytest.mark.parametrize("task", task_names())
def test_help_has_every_field_of_the_task_and_its_defaults(task, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    nearsight("train", "--task", task, "--help")
    printed = capsys.readouterr().out
    kind = task_kind(task)
    for field in dataclasses.fields(kind.recipe):
        assert field.name == "data" or f"--{field.name.replace('_', '-')} " in printed, field.name
    assert f"[default: {kind.recipes[kind.default_recipe].model}]" in printed
    assert f"those of the recipe {kind.default_recipe}" in printed
    (other,) = set(task_names()) - {task}
    assert f"nearsight train --task {other} --help" in printed


@pytest.mark.parametrize(
    ("words", "default"),
    [
        (["bccd"], "retinanet_small"),
        (["clothing"], "small"),
        (["--recipe", "retinanet"], "retinanet_small"),
        (["nowhere"], "small"),
    ],
)
def test_help_is_that_of_the_task_of_the_data(words, default, capsys):
    nearsight("train", *words, "--help")
    assert f"those of the recipe {default}" in " ".join(capsys.readouterr().out.split())


def test_a_file_says_the_task(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("recipe: retinanet\nlr: 0.1\n")
    nearsight("train", "--config", tmp_path / "mine.yaml", "--help")
    assert "those of the recipe retinanet_small" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "bccd", "--recipe", "small"],
            "bccd is for detection, recipe small for classification",
        ),
        (
            ["train", "--task", "segmentation"],
            "there is no task 'segmentation'; the tasks are classification",
        ),
        (["detect", "train", "x", "--set", "a_b=3", "--lr", "4"], "use: nearsight train x --a-b 3 --lr 4"),
        (["detect", "train", "x", "--set=a_b=3"], "use: nearsight train x --a-b 3"),
        (["detect", "eval", "run", "--split", "test"], "use: nearsight eval run --split test"),
        (["detect", "predict", "run", "a b.png"], "use: nearsight predict run 'a b.png'"),
        (["detect", "demo", "--run", "x"], "use: nearsight demo --task detection --out x"),
        (["detect"], "`nearsight detect` is gone: train, resume, eval and predict serve detection too"),
        (["detect", "--help"], "`nearsight detect` is gone"),
    ],
)
def test_what_was_meant_is_named(words, message):
    with pytest.raises(ValueError) as told:
        nearsight(*words)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_an_unknown_option_is_named():
    with pytest.raises(CycloptsError, match="--epoks"):
        nearsight("train", "clothing", "--epoks", "3")


def test_options_of_another_task_are_refused_by_name(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("task: detection\n")
    with pytest.raises(ValueError, match="--top is for classification; detection does not read it"):
        nearsight("predict", tmp_path, "x.png", "--top", "3")
    config.write_text("task: classification\n")
    with pytest.raises(ValueError, match="--min-score is for detection; classification does not read it"):
        nearsight("predict", tmp_path, "x.png", "--min-score", "3")
    with pytest.raises(ValueError, match="--results is for detection; classification does not read it"):
        nearsight("eval", tmp_path, "--results", "x.json")


def test_data_of_another_task_than_the_run_s_is_refused_by_name(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("task: classification\n")
    with pytest.raises(ValueError, match=r"bccd is for detection, the run [^ ]* for classification; choose another"):
        nearsight("train", "bccd", "--run", tmp_path)
    with pytest.raises(SystemExit):
        nearsight("eval", tmp_path, "bccd")
    assert f"bccd is for detection, and {tmp_path} is a run of classification" in capsys.readouterr().err


def test_help_of_eval_and_predict_without_a_run_shows_every_task(capsys):
    nearsight("predict", "--help")
    printed = capsys.readouterr().out
    assert "--top" in printed
    assert "--min-score" in printed
    nearsight("eval", "--help")
    assert "--results" in capsys.readouterr().out


def test_resume_shows_what_the_run_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "config.yaml").write_text(json.dumps({"data": "x", "lr": 0.0123}))
    nearsight("resume", tmp_path, "--help")
    assert any("--lr " in line and "[default: 0.0123]" in line for line in capsys.readouterr().out.splitlines())


def test_two_tasks_may_have_an_option_of_the_same_name():
    kind = task_kind("detection").predict_options
    other = dataclasses.make_dataclass("Other", [("out", str, dataclasses.fields(kind)[0])])
    options = option_class((kind, kind()), (other, None))
    assert [field.name for field in dataclasses.fields(options)] == ["out", "min_score"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare"], "mean ± sd and Welch's p"),
        (["demo"], "The figures are of one seed"),
        (["explore"], "from any patch of any picture"),
        (["bench", "layers"], "unfold and FlexAttention, at four stages"),
        (["eval"], "Measure a run's selected weights on its own data or on DATA"),
    ],
)
def test_help_of_a_verb_says_all_that_its_author_wrote(words, said, capsys):
    nearsight(*words, "--help")
    assert said in " ".join(capsys.readouterr().out.split())
