"""`nearsight inspect` as a person calls it."""

import csv
import json
import shutil

import pytest
from cyclopts import App
from PIL import Image

from nearsight.cli.inspect import inspect
from nearsight.datasets.sources import open_data
from nearsight.explorer.sources import open_source, pictures_of


def call(*arguments: str) -> int:
    app = App(result_action="return_value")
    app.command(inspect)
    return app(["inspect", *arguments])


def test_table_on_the_screen_and_in_files(tmp_path, capsys):
    assert call("convit_nano_32", "--images", "2") == 0
    text = capsys.readouterr().out
    assert "convit_nano_32" in text
    assert "gpsa" in text
    assert call("convit_nano_32", "deit_nano_32", "--images", "2", "--out", str(tmp_path / "heads.csv")) == 0
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 6 * 9
    assert rows[0]["gate_value"].startswith("0.7310")
    with pytest.raises(ValueError, match=r"written as \.json or \.csv"):
        call("convit_nano_32", "--images", "1", "--out", str(tmp_path / "heads.txt"))


@pytest.mark.parametrize("figure", ["3", "7", "15", "16", "17"])
def test_figures_of_models(tmp_path, figure):
    out = tmp_path / "f.png"
    sources = ["deit_nano_32", "convit_nano_32"] if figure != "3" else ["convit_nano_32"]
    count = ["--images", "3"] if figure == "15" else []
    assert call(*sources, "--figure", figure, "--out", str(out), "--query", "1", "2", *count) == 0
    data = json.loads(out.with_suffix(".json").read_text())
    assert data["figure"] == f"ConViT Figure {figure}"


def test_figures_from_logs_need_runs(tmp_path):
    with pytest.raises(ValueError, match="needs run folders, and convit_nano_32 is a model"):
        call("convit_nano_32", "--figure", "5", "--out", str(tmp_path / "f.png"))


def test_a_run_is_looked_at_with_its_own_validation_pictures(run_folder, tmp_path, capsys):
    assert call(str(run_folder), "--images", "2") == 0
    assert "pictures: the validation pictures of nano-1 (clothing)" in capsys.readouterr().err
    arguments = ["deit_nano_32", str(run_folder), "--figure", "7", "--out", str(tmp_path / "f.png")]
    assert call(*arguments) == 0
    assert "the validation pictures of nano-1" in capsys.readouterr().err
    own = pictures_of([open_source(str(run_folder))])
    val = open_data("clothing").val
    assert own.images.fingerprint() == val.fingerprint()
    assert [name for name, _ in own.take(4)] == list(val.classes[:4])  # one of each class in turn
    assert len(own.at_most(10**6)) == len(val)


def test_a_detection_run_is_inspected_like_any_other(detection_run, tmp_path, capsys):
    assert call(str(detection_run), "--images", "2") == 0
    said = capsys.readouterr()
    assert "local" in said.out
    assert "pictures: the validation pictures of cells-1 (bccd)" in said.err
    assert call(str(detection_run), "--figure", "sasa-attention", "--out", str(tmp_path / "w.png")) == 0
    layers = json.loads((tmp_path / "w.json").read_text())["layers"]
    assert layers[0]["grid_size"] == [24, 32]


def test_samples_are_few_and_small_and_those_that_can_be_read(run_folder, tmp_path):
    data = tmp_path / "data"
    for split, count in (("train", 8), ("val", 1)):
        for name in ("hat", "shoes", "skirt"):
            (data / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (3000, 60), (40, 200, 10)).save(data / split / name / f"{number}.png")
    (data / "val" / "hat" / "0.png").write_bytes(b"broken")
    run = shutil.copytree(run_folder, tmp_path / "run")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("data: clothing", f"data: {data}"))
    pictures = pictures_of([open_source("deit_nano_32"), open_source(str(run))])
    shown = pictures.samples()
    assert [name for name, _ in shown] == ["shoes", "skirt"]
    assert all(max(pixels.shape) == 1024 for _, pixels in shown)
    assert pictures.origin.startswith("the validation pictures of run")
    assert len(pictures_of([open_source(str(run_folder))]).samples()) == 12


def test_the_bundled_pictures_stand_in_and_it_is_said_why(run_folder, tmp_path, capsys):
    moved = shutil.copytree(run_folder, tmp_path / "moved")
    (moved / "data.json").write_text('{"val": "another"}')
    assert pictures_of([open_source(str(moved))]).origin.endswith(
        "(the run's own cannot be used: clothing has changed since)"
    )
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("data: clothing", "data: /gone/far"))
    assert call(str(moved), "--images", "1") == 0
    assert "bundled photographs of clothing (the run's own cannot be used: /gone/far" in capsys.readouterr().err
    assert call("convit_nano_32", "--images", "1") == 0
    assert capsys.readouterr().err == "pictures: the bundled photographs of clothing\n"
    with pytest.raises(ValueError, match="there are 760 pictures, not 761"):
        call("convit_nano_32", "--images", "761")


def test_the_table_and_averages_are_of_the_pictures_that_are_named(tmp_path):
    for name, colour in (("black", 0), ("grey", 128)):
        Image.new("RGB", (40, 40), (colour,) * 3).save(tmp_path / f"{name}.png")
    rows = {}
    for name in ("black", "grey"):
        out = tmp_path / "new" / f"{name}.json"
        assert call("convit_nano_32", "--image", str(tmp_path / f"{name}.png"), "--out", str(out)) == 0
        rows[name] = json.loads(out.read_text())
    assert rows["black"] != rows["grey"]
    both = [str(tmp_path / f"{name}.png") for name in rows]
    assert call("deit_nano_32", "--figure", "15", "--image", *both, "--out", str(tmp_path / "f.png")) == 0
    assert json.loads((tmp_path / "f.json").read_text())["num_images"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "1", "1"], "the table has no use for --query; it takes --image and --images"),
        (["--layers", "1"], "the table has no use for --layers"),
        (["--images", "-3"], "--images is at least 1, not -3"),
        (["--images", "2", "--image", "a.png"], "give one of the two"),
        (["--figure", "7", "--images", "2"], "--figure 7 has no use for --images"),
        (["--figure", "5", "--image", "a.png"], "--figure 5 has no use for --image; it takes none of these"),
        (["--figure", "sasa-logits", "--layers", "1"], "has no use for --layers"),
        (["--figure", "3", "--image", "a.png", "b.png"], "of one picture"),
        (["deit_nano_32", "--figure", "3"], "of one model"),
        (["--out", "a.txt"], "--out: a table is written as .json or .csv, not 'a.txt'"),
        (["--figure", "7", "--out", "f.csv"], "--out: a figure is written as .png or .svg or .pdf, not 'f.csv'"),
    ],
)
def test_options_without_a_use_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        call("convit_nano_32", *arguments)


def test_a_bad_picture_is_named(tmp_path):
    (tmp_path / "x.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"x\.png"):
        call("convit_nano_32", "--figure", "7", "--image", str(tmp_path / "x.png"))
    with pytest.raises(ValueError, match="name what to look into"):
        call()
