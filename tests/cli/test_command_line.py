"""The verbs, as a person types them."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from pictures import make_folder
from verbs import nearsight

from nearsight.classification.recipe import CLASSIFICATION_RECIPES
from nearsight.cli.options import given_options, option_class
from nearsight.cli.using import print_evaluation, print_predictions, write_evaluation
from nearsight.recipes.files import thaw
from nearsight.tasks import Evaluation, Prediction

SMALL = [
    *("--model", "convit_nano_32", "--image-size", "8", "--patch-size", "4", "--batch", "6", "--epochs", "2"),
    *("--warmup-epochs", "0.5", "--model-options.width", "36", "--model-options.depth", "2"),
    *("--model-options.num_gated_blocks", "1", "--log-every", "3", "--show", "plain", "--no-report"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "pics")
    make_folder(tmp_path / "few", per_class=2)
    for name in ("amber", "blue"):
        shutil.rmtree(tmp_path / "few" / "val" / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["demo", "--run", "runs/x"], "nearsight demo --task detection --out runs/x"),
        (["eval", "runs/cells", "--split", "test"], "nearsight eval runs/cells --split test"),
        (["train", "D", "--set", "drop_path=0.2", "--set=ema=0.9"], "nearsight train D --drop-path 0.2 --ema 0.9"),
        (
            ["train", "D", "--set", "model_options={backbone_attention: {start: random}, attention: {kernel_size: 5}}"],
            "nearsight train D --model-options '{attention: {start: random}, head_attention: {kernel_size: 5}}'",
        ),
    ],
)
def test_a_form_that_is_gone_names_the_new_one(old, new):
    with pytest.raises(ValueError, match=re.escape(f"is gone; use: {new}") + "$"):
        nearsight("detect", *old)


def test_a_reader_that_leaves_early_is_no_mistake():
    reading, writing = os.pipe()
    os.close(reading)
    call = [sys.executable, "-c", "from nearsight.cli.app import main; main()", "reproduce"]
    done = subprocess.run(call, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_files_that_are_not_read_are_told_everywhere(here, capsys):
    shutil.copytree(here / "pics", here / "mixed")
    for name in ("train/amber/a.cr2", "val/blue/b.heic.part"):
        (here / "mixed" / name).touch()
    there = len(list((here / "pics").rglob("*.*")))
    first = "1 .cr2 (camera raw: export them as JPEG or PNG), such as amber/a.cr2"
    told = f"warning: 2 of {there + 2} files are not read: {first}; "
    assert nearsight("train", "mixed", *SMALL[:-1], "--run", "run") == 0
    printed = capsys.readouterr().out
    assert printed.count(told) == 1
    assert json.loads((here / "run" / "data.json").read_text())["not_read"] == {
        ".cr2 (camera raw: export them as JPEG or PNG)": 1,
        ".part (not the extension of a picture that is read)": 1,
    }
    assert "1 .cr2 (camera raw" in (here / "run" / "report.html").read_text()
    for data in ((), ("mixed",)):
        assert nearsight("eval", "run", *data, "--json") == 0
        assert json.loads(capsys.readouterr().out)["notes"][0].startswith(told)
    assert nearsight("predict", "run", "mixed", "--json") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == there
    assert err.startswith(f"warning: 2 of {there + 2} files are not read: ")
    (here / "mixed" / "train" / "amber" / "c.cr2").touch()
    assert nearsight("resume", "run", "--override", "--epochs", "3", "--no-report") == 0, "the pictures are the same"
    assert (
        json.loads((here / "run" / "data.json").read_text())["not_read"][
            ".cr2 (camera raw: export them as JPEG or PNG)"
        ]
        == 2
    )


def test_an_evaluation_is_told_by_class_as_text_json_and_csv(tmp_path, capsys):
    classes = {f"class {n}": {"recall": n / 2, "recall_low": 0.0, "recall_high": 90.0, "n": 7} for n in range(60)}
    values = {"top1": 95.0, "top1_low": 83.5, "top1_high": 98.6, "loss": 0.25}
    found = Evaluation("here: 40 images", "test", values, {}, (), classes)
    print_evaluation(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["here: 40 images", "test: top-1 95.0 % [83.5, 98.6]", "test: loss 0.250"]
    assert lines[3] == "class 0: recall 0.0 % [0.0, 90.0], n 7"
    assert len(lines) == 44
    assert lines[-1] == "these are the 40 worst of 60 classes; --csv FILE or --json has all"
    print_evaluation(found, as_json=True)
    assert json.loads(capsys.readouterr().out)["classes"] == classes
    write_evaluation(found, tmp_path / "found.csv")
    rows = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert (rows[0]["class"], rows[0]["top1"], rows[0]["n"]) == ("", "95.0", "")
    assert (rows[60]["class"], rows[60]["recall"], rows[60]["n"]) == ("class 59", "29.5", "7")
    with pytest.raises(ValueError, match=r"--csv: .*nowhere/x\.csv cannot be written"):
        write_evaluation(found, tmp_path / "nowhere" / "x.csv")


def test_a_first_walk_through(here, capsys):
    assert nearsight("train", "pics", *SMALL) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("images with classes: a classifier, recipe small\n")
    assert "small: epochs: 100.0 → 2.0" in printed
    assert "small: weight_decay" not in printed  # only differences from the recipe
    assert "learning rate: 0.001 × 6/128" in printed
    assert re.search(r"selected on val: top-1 \d+\.\d % at step \d+ ", printed)
    run = "runs/pics-convit-nano-32-1"
    assert thaw(f"{run}/config.yaml").model_options == {"width": 36, "depth": 2, "num_gated_blocks": 1}

    assert "val by class: balanced accuracy " in printed
    assert nearsight("eval", run, "--json", "--csv", "classes.csv") == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 <= told["balanced_low"] <= told["balanced"] <= told["balanced_high"] <= 100
    rows = list(csv.DictReader((here / "classes.csv").read_text().splitlines()))
    assert [row["class"] for row in rows] == ["", *told["classes"]]
    assert nearsight("predict", run, "pics/val/amber", "--top", "2", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert all(len(line["classes"]) == 2 for line in lines)
    with pytest.raises(ValueError, match="top must be at least 1"):
        nearsight("predict", run, "x.png", "--top", "0")
    with pytest.raises(SystemExit):
        nearsight("predict", run, "empty")
    assert (
        "there is no picture in empty; 1 of 1 files are not read: 1 .txt (no pictures), such as notes.txt"
        in capsys.readouterr().err
    )
    assert nearsight("resume", run, "--show", "plain") == 0
    assert "finished" in capsys.readouterr().out

    assert nearsight("train", "pics", *SMALL, "--seed", "1") == 0
    assert nearsight("compare", run, "runs/pics-convit-nano-32-2", "--json") == 0
    compared = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert compared["settings"][0]["seeds"] == [0, 1]

    assert nearsight("train", "pics", *SMALL, "--recipe", "convit") == 0
    capsys.readouterr()
    runs = [run, "runs/pics-convit-nano-32-2", "runs/pics-convit-nano-32-3"]
    assert nearsight("compare", *runs, "--out", "plots/both.png") == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "plot: plots/both.png"
    assert re.search(r"0, 1 +│ +\d+\.\d\d ± \d+\.\d\d ", printed)
    # Two recipes differ in more than a label can say: the rest is listed.
    assert "more" in printed
    assert re.search(r"│ decay_positions +│ no +│ yes ", printed)


def test_changes_are_told_from_the_recipe_that_a_file_names(here, capsys):
    (here / "mine.yaml").write_text("recipe: convit\nmixup: 0\n")
    assert nearsight("train", "pics", "--config", "mine.yaml", *SMALL) == 0
    printed = capsys.readouterr().out
    assert "convit: mixup: 0.8 → 0.0" in printed
    assert "small: " not in printed


def test_a_run_may_lie_among_the_classes_of_odd_names(here, monkeypatch, capsys):
    monkeypatch.chdir(here / "pics" / "train")
    os.rename("amber", os.fsdecode(b"caf\xe9"))
    for _ in range(2):
        assert nearsight("train", ".", *SMALL, "--fraction", "0.5") == 0
    assert capsys.readouterr().out.count(": 3 classes; ") == 2
    run = "runs/convit-nano-32-1"
    assert nearsight("resume", run, "--show", "plain") == 0
    assert "finished" in capsys.readouterr().out
    (here / "pics" / "train" / run / "done.json").write_text("{")
    with pytest.raises(SystemExit):
        nearsight("resume", run)
    assert "runs/convit-nano-32-1/done.json is damaged" in capsys.readouterr().err
    assert nearsight("predict", run, os.fsdecode(b"caf\xe9")) == 0
    assert r"caf\udce9/000.png" in capsys.readouterr().out


def test_a_batch_that_nobody_asked_for_fits_the_data(here, capsys):
    place = SMALL.index("--batch")
    words = SMALL[:place] + SMALL[place + 2 :]
    with pytest.raises(SystemExit):
        nearsight("train", "pics", *words, "--batch", "128")
    assert "batch 128 is larger than the 36 training images; use --batch 8, for" in capsys.readouterr().err
    for run, asked in (("runs/auto", ["--batch", "auto"]), ("runs/plain", [])):
        for _ in range(2):  # the same command goes on with the same run
            assert nearsight("train", "pics", *words, *asked, "--run", run) == 0
            printed = capsys.readouterr().out
            assert "small: batch: 128 → 8" in printed
            assert "a batch of 8, for few training images" in printed
        recipe = thaw(f"{run}/config.yaml")
        assert (recipe.batch, recipe.batch_auto) == (8, bool(asked))
        assert nearsight("resume", run) == 0
        assert "finished" in capsys.readouterr().out
    (here / "mine.yaml").write_text("batch: 32\n")  # a batch that somebody stated stays
    assert nearsight("train", "pics", *words, "--config", "mine.yaml", "--run", "runs/stated") == 0
    assert thaw("runs/stated/config.yaml").batch == 32


def test_mistakes_name_what_was_meant(here, capsys):
    (here / "file").touch()
    shutil.copytree(here / "pics" / "val" / "amber", here / "boxes" / "images")
    (here / "boxes" / "labels").mkdir()
    for words, message in (
        (
            ["train", "pics", "--batch", "6", "--model", "retinanet_resnet26"],
            "retinanet_resnet26 is a model for detection, not for classification",
        ),
        (["train", "pics", *SMALL, "--run", "file"], "file is a file; a run is a folder"),
        (["train", "boxes"], "boxes holds images with boxes, not classes"),
        (["train", "pics", "--batch", "6", "--model", "timm:resnet1o"], "did you mean resnet"),
    ):
        with pytest.raises(SystemExit) as ended:
            nearsight(*words)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nowhere"], "nowhere: no such file or folder"),
        (["train", "pics", "--batch", "6", "--model", "convit_huge"], "no model is named 'convit_huge'"),
        (["train", "pics", "--lr", "-1"], "lr must be above 0"),
        (["train", "pics", "--epochs", "inf"], "epochs must be a finite number, got inf"),
        (
            ["train", "pics", "--model", "timm:vit_tiny_patch16_224", "--image-size", "8", "--batch", "6"],
            "does not take",
        ),
        (["train", "few", "--batch", "4", "--first-classes", "2"], "none of the first 2 classes (amber, blue)"),
        (["train", "pics", "--recipe", "big"], "there is no recipe 'big'"),
        (["eval", "pics"], "pics is not a run"),
        (["predict", "pics", "x.png"], "pics is not a run"),
        (["resume", "runs/none"], "is not a run"),
        (["compare", "pics", "pics", "--out", "plot.pdf"], "--out writes a .png file, not 'plot.pdf'"),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(here, capsys, words, message):
    try:
        with pytest.raises((SystemExit, ValueError)) as caught:
            nearsight(*words)
    finally:
        printed = capsys.readouterr().err
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 2
        assert printed.count("\n") == 1
        assert message in printed
    else:  # the entry point turns it into the same
        assert message in str(caught.value)
    assert not (here / "runs").exists()


def test_batch_auto_keeps_the_batch():
    options = option_class((type(CLASSIFICATION_RECIPES["small"]), None))
    assert given_options(options(batch="auto", lr=0.1)) == {"lr": 0.1, "batch_auto": True}
    assert given_options(options(batch=32)) == {"batch": 32}
    assert given_options(options()) == {}


def test_help_does_not_import_torch():
    for words in (["--help"], ["train", "--help"], ["train", "bccd", "--help"], ["predict", "--help"], ["recipes"]):
        code = f"import sys; from nearsight.cli.verbs import app; app({words}); sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0, words


def test_a_long_path_is_shown_whole(capsys):
    name = f"{'pictures/' * 20}one.png"
    print_predictions([Prediction(name, "shirt 50.0 %", {})], as_json=False)
    shown = "".join(line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line)
    assert shown == name
