"""`nearsight inspect` as a person calls it."""

import csv
import json
import shutil

import pytest
from cyclopts import App

from nearsight.cli.inspect import inspect
from nearsight.cli.pictures import pictures_for
from nearsight.data import open_data
from nearsight.explorer.sources import open_source


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
    assert call(*sources, "--figure", figure, "--out", str(out), "--query", "1", "2", "--images", "3") == 0
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
    own = pictures_for(open_source(str(run_folder)))
    val = open_data("clothing").val
    assert own.images.fingerprint() == val.fingerprint()
    assert [name for name, _ in own.take(4)] == list(val.classes[:4])  # one of each class in turn
    assert len(own.batch(0, 10**6, (32, 32))) == len(val)


def test_the_bundled_pictures_stand_in_and_it_is_said_why(run_folder, tmp_path, capsys):
    moved = shutil.copytree(run_folder, tmp_path / "moved")
    (moved / "data.json").write_text('{"val": "another"}')
    assert pictures_for(open_source(str(moved))).origin.endswith(
        "(the run's own cannot be used: clothing has changed since)"
    )
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("data: clothing", "data: /gone/far"))
    assert call(str(moved), "--images", "1") == 0
    assert "bundled photographs of clothing (the run's own cannot be used: /gone/far" in capsys.readouterr().err
    assert call("convit_nano_32", "--images", "1") == 0
    assert capsys.readouterr().err == "pictures: the bundled photographs of clothing\n"
    with pytest.raises(ValueError, match="there are 372 pictures, not 373"):
        call("convit_nano_32", "--images", "373")


def test_a_bad_picture_is_named(tmp_path):
    (tmp_path / "x.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"x\.png"):
        call("convit_nano_32", "--figure", "7", "--image", str(tmp_path / "x.png"))
    with pytest.raises(ValueError, match="name what to look into"):
        call()
