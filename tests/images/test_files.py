"""Finding pictures in folders: whatever is not read is counted, with its reason and the remedy."""

import pytest

from nearsight.images import formats
from nearsight.images.files import PassedOver, picture_files, pictures_below


@pytest.fixture
def mixed(image_folder):
    root = image_folder({"cat": 2, "dog": 1})
    for name in ("cat/a.HEIC", "cat/b.heic", "dog/c.cr2", "dog/notes.txt", "dog/.x.png", "dog/photo", "dog/d.xyz"):
        (root / name).touch()
    (root / "cat" / ".thumbs").mkdir()
    (root / "cat" / ".thumbs" / "a.png").touch()
    return root


def test_every_file_is_found_or_counted(mixed, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    passed = PassedOver()
    assert pictures_below(mixed, passed) == ["cat/000.png", "cat/001.png", "dog/000.png"]
    assert passed.counts == {
        "hidden": 2,
        '.heic (to read them, pip install "nearsight[formats]")': 2,
        ".cr2 (camera raw: export them as JPEG or PNG)": 1,
        ".txt (no pictures)": 1,
        "without an extension (add .jpg, or what they are)": 1,
        ".xyz (not the extension of a picture that is read)": 1,
    }
    (note,) = passed.notes(3)
    assert note.startswith("warning: 8 of 11 files are not read: 2 ")
    assert '2 .heic (to read them, pip install "nearsight[formats]"), such as cat/a.HEIC' in note


def test_with_the_plugin_they_are_pictures(mixed):
    pytest.importorskip("pi_heif")
    passed = PassedOver()
    assert "cat/a.HEIC" in pictures_below(mixed, passed)
    assert len(passed) == 6


def test_what_nobody_would_miss_is_no_warning(tmp_path):
    for name in (".DS_Store", "labels.csv", "readme.md"):
        (tmp_path / name).touch()
    passed = PassedOver()
    assert pictures_below(tmp_path, passed) == []
    (note,) = passed.notes(0)
    assert note.startswith("3 of 3 files are not read: 1 hidden, such as .DS_Store; ")


def test_many_kinds_are_told_briefly(tmp_path):
    for number in range(20):
        (tmp_path / f"x.a{number}").touch()
    passed = PassedOver()
    pictures_below(tmp_path, passed)
    assert len(passed.counts) == 20
    assert passed.notes(0)[0].endswith("; and 14 kinds more")


def test_files_to_predict_are_counted_alike(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    passed = PassedOver()
    files = list(picture_files([mixed, mixed / "cat" / "a.HEIC"], passed))
    assert [file.name for file in files] == ["000.png", "001.png", "000.png", "a.HEIC"], "a file that is named is tried"
    assert len(passed) == 8
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x.heic").touch()
    with pytest.raises(ValueError, match=r"no picture in .*none; warning: 1 of 1 files are not read: 1 \.heic"):
        list(picture_files([tmp_path / "none"]))
