"""Image folders: what is found, how val is made, what is refused (with its name and the remedy)."""

import os

import numpy as np
import pytest
from PIL import Image

from nearsight.datasets.labelled import subset, with_classes
from nearsight.datasets.sources import open_data, open_images
from nearsight.datasets.splitting import split_word
from nearsight.images import formats


def test_train_and_val_are_taken_as_given(image_folder):
    root = image_folder(
        {"train/cat": 3, "train/dog/puppies": 4, "validation/cat": 2, "validation/dog": 1, "test/dog": 2}
    )
    (root / "train" / "cat" / ".DS_Store").touch()
    (root / "train" / "cat" / "notes.txt").touch()
    splits = open_data(root)
    assert splits.train.classes == splits.val.classes == splits.test.classes == ("cat", "dog")
    assert splits.train.labels.tolist() == [0] * 3 + [1] * 4
    assert splits.train.names[3] == "dog/puppies/000.png"
    assert splits.test.labels.tolist() == [1, 1]
    assert "train 7, val 3, test 2" in splits.origin
    assert "val as given" in splits.origin
    with Image.open(root / "validation" / "dog" / "000.png") as image:
        assert np.array_equal(splits.val.read(2), np.asarray(image))


def test_one_folder_is_split_by_class_and_additions_move_nothing(image_folder):
    root = image_folder({"cat": 40, "dog": 30, "eel": 2})
    before = open_data(root, seed=3, val_fraction=0.2)
    assert np.bincount(before.train.labels).min() >= 1
    assert np.bincount(before.val.labels, minlength=3).min() >= 1
    assert not set(before.train.names) & set(before.val.names)
    assert len(before.train) + len(before.val) == 72
    assert 6 <= len(before.val) <= 24
    for number in range(100, 130):
        Image.new("RGB", (3, 2)).save(root / "cat" / f"{number}.png")
    after = open_data(root, seed=3, val_fraction=0.2)
    moved = (set(before.train.names) & set(after.val.names)) | (set(before.val.names) & set(after.train.names))
    assert not {name for name in moved if name.startswith("dog")}
    assert len(moved) <= 1  # the one image that stood in so that neither side was empty
    assert set(open_data(root, seed=4).val.names) != set(after.val.names)
    assert "by hash of seed 3" in before.origin


def test_runs_beside_the_classes_or_within_one_are_passed_over(image_folder):
    root = image_folder({"cat": 3, "dog": 3, "runs/first": 1, "runs/sweep/seed-0": 1, "mine": 1, "cat/run": 1})
    for run in ("runs/first", "mine", "cat/run"):
        (root / run / "run.lock").touch()
    (root / "runs" / "sweep" / "seed-0" / "config.yaml").touch()
    assert open_images(root).images.classes == ("cat", "dog", "runs")  # a config alone does not make a run
    (root / "runs" / "sweep" / "seed-0" / "checkpoints").mkdir()
    images = open_images(root).images
    assert images.classes == ("cat", "dog")
    assert len(images) == 6
    Image.new("RGB", (2, 2)).save(root / "runs" / "jogger.png")
    assert open_images(root).images.classes == ("cat", "dog", "runs")  # a class after all


def test_train_may_be_a_class(image_folder):
    assert open_data(image_folder({"bus": 3, "car": 3, "train": 4}, "vehicles")).train.classes == (
        "bus",
        "car",
        "train",
    )
    flat = image_folder({"train": 3, "val": 3}, "flat")
    with pytest.raises(ValueError, match="flat/train: it holds images but no class folders"):
        open_data(flat)


def test_class_names_have_one_line(image_folder):
    with pytest.raises(ValueError, match=r"the name of class 'c\\nat' has a line break; rename it"):
        open_data(image_folder({"c\nat": 3, "dog": 3}))


def test_a_test_split_stays_out_of_sight_unless_told(image_folder):
    root = image_folder({"train/a": 20, "train/b": 20, "test/a": 3, "test/b": 3})
    splits = open_data(root)
    assert (len(splits.train) + len(splits.val), len(splits.test)) == (40, 6)
    told = open_data(root, val_fraction=0)
    assert (len(told.train), len(told.val)) == (40, 6)
    assert "val IS the test split" in told.origin


def test_val_may_come_from_train_although_the_data_has_a_val_split(image_folder):
    root = image_folder({"train/a": 40, "train/b": 40, "val/a": 3, "val/b": 3})
    given, taken = open_data(root), open_data(root, val_fraction=0.25, val_from="train")
    assert (len(given.train), len(given.val), given.test) == (80, 6, None)
    assert len(taken.train) + len(taken.val) == 80
    assert 4 < len(taken.val) < 36
    assert list(taken.test.names) == list(given.val.names), "the data's own val split is the test split"
    assert set(taken.val.names) <= set(given.train.names)
    with pytest.raises(ValueError, match="val_fraction must be above 0"):
        open_data(root, val_fraction=0, val_from="train")


def test_a_test_split_stays_test_where_val_comes_from_train(image_folder):
    root = image_folder({"train/a": 20, "train/b": 20, "val/a": 3, "val/b": 3, "test/a": 2, "test/b": 2})
    assert len(open_data(root, val_from="train").test) == 4


def test_a_wrapper_folder_is_looked_through_and_unlabelled_test_images_ignored(image_folder):
    root = image_folder({"set/train/a": 4, "set/train/b": 4, "set/test": 3})
    splits = open_data(root)
    assert len(splits.train) + len(splits.val) == 8
    assert splits.test is None


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train/cat": 2, "train/dog": 0, "val/cat": 1}, r"class folder .*train/dog has no images"),
        ({"cat": 3, "dog": 1}, "class 'dog' has a single image"),
        ({"cat": 3}, "one class only"),
        ({"train/a": 2, "train/b": 2, "val/c": 2}, "classes without training images: 'c'"),
        ({"train/a": 2, "train/b": 2, "val": 0}, r"val: it is empty; expected one folder per class"),
        ({".": 3}, "images but no class folders"),
    ],
)
def test_bad_folders_are_refused_by_name(image_folder, tmp_path, counts, message):
    if "." in counts:
        root = tmp_path / "flat"
        root.mkdir()
        Image.new("RGB", (2, 2)).save(root / "a.png")
    else:
        root = image_folder(counts)
    with pytest.raises(ValueError, match=message):
        open_data(root)


def test_empty_and_missing_sources(tmp_path):
    with pytest.raises(ValueError, match="it is empty"):
        open_data(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere: no such file or folder; data is a folder, \.csv"):
        open_data(tmp_path / "nowhere")
    (tmp_path / "x.doc").touch()
    with pytest.raises(ValueError, match="not a kind of data"):
        open_data(tmp_path / "x.doc")
    with pytest.raises(ValueError, match=r"val_fraction must be in \[0, 1\), got 1\.5"):
        open_data("clothing", val_fraction=1.5)


def test_a_class_of_which_nothing_can_be_read_is_named(image_folder):
    root = image_folder({"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1})
    for file in (root / "train" / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"class 'dog': none of its 2 images can be read; dog/000\.png: empty file"):
        open_data(root)
    Image.new("RGB", (2, 2)).save(root / "train" / "dog" / "001.png")
    assert len(open_data(root).train) == 5  # one good image is enough to start; the rest is counted while training


def test_links_are_followed_but_not_in_circles(image_folder):
    root = image_folder({"a": 3, "b": 3})
    os.symlink(root / "a", root / "a" / "again")
    os.symlink(root / "a" / "000.png", root / "b" / "linked.png")
    splits = open_data(root)
    assert len(splits.train) + len(splits.val) == 7


def test_fingerprint_follows_the_files(image_folder):
    root = image_folder({"train/a": 3, "train/b": 3, "val/a": 1, "val/b": 1})
    before = open_data(root).train.fingerprint()
    assert open_data(root).train.fingerprint() == before
    with open(root / "train" / "a" / "000.png", "ab") as file:
        file.write(b"x")
    assert open_data(root).train.fingerprint() != before


def test_one_set_to_evaluate_on(image_folder):
    root = image_folder({"train/a": 4, "train/b": 4, "val/a": 1, "val/b": 2})
    assert [len(one.images) for one in (open_images(root), open_images(root, split="train"))] == [3, 8]
    assert open_images(root).split == "val"
    assert open_images(root).origin.endswith(": 3 images of val")
    assert open_images(root / "train").origin.endswith(": all 8 images")
    with pytest.raises(ValueError, match="has no test split, but train, val"):
        open_images(root, split="test")


def test_images_take_the_places_of_a_longer_list_of_classes(image_folder):
    images = open_images(image_folder({"b": 2, "d": 3})).images
    renamed = with_classes(images, ["a", "b", "c", "d"])
    assert renamed.labels.tolist() == [1, 1, 3, 3, 3]
    assert renamed.classes == ("a", "b", "c", "d")
    assert (renamed.read(4) == images.read(4)).all()
    assert renamed.fingerprint() != images.fingerprint()
    with pytest.raises(ValueError, match="images of other classes than a, b: d"):
        with_classes(images, ["a", "b"])
    only_listed = subset(images, [0, 1])
    assert with_classes(only_listed, ["a", "b"]).labels.tolist() == [1, 1]


def test_words_for_splits():
    assert split_word("imagenet-train-0003.tar") == "train"
    assert split_word("validation-00000-of-00001.parquet") == "val"
    assert split_word("latest_trainings.tar") is None
    assert split_word("train-test.tar") is None


def test_files_that_are_not_read_are_counted(image_folder, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    root = image_folder({"train/cat": 3, "train/dog": 3, "val/cat": 1, "val/dog": 1, "test": 2, "extra": 1})
    for name in ("train/cat/a.heic", "train/stray.png", "readme.md", ".DS_Store", "val/dog/Thumbs.db"):
        (root / name).touch()
    splits = open_data(root)
    assert splits.not_read == {
        "hidden": 1,
        ".md (no pictures)": 1,
        "in folders beside those of the splits": 1,
        "beside the class folders, not in one": 1,
        '.heic (to read them, pip install "nearsight[formats]")': 1,
        ".db (no pictures)": 1,
        "in test, which has no class folders": 2,
    }
    (note,) = splits.notes
    assert note.startswith("warning: 8 of 16 files are not read: 2 in test, which has no class folders, such as test/")
    assert open_images(root).notes == splits.notes
    for file in (root / "val" / "dog").iterdir():
        file.rename(file.with_suffix(".heic"))
    with pytest.raises(ValueError, match=r"class folder .*val/dog has no images; warning: 2 of 2 files are not read: "):
        open_data(root)


def test_what_a_mac_adds_to_archives_is_no_class(image_folder):
    root = image_folder({"set/cat": 3, "set/dog": 3, "__MACOSX/set": 0})
    (root / "__MACOSX" / "set" / "._000.png").touch()
    splits = open_data(root)
    assert splits.train.classes == ("cat", "dog")
    assert splits.not_read == {"hidden": 1}


def test_two_folders_for_one_split_are_refused(image_folder):
    root = image_folder({"train/a": 3, "train/b": 3, "val/a": 1, "val/b": 1, "valid/a": 1, "valid/b": 1})
    with pytest.raises(ValueError, match="val and valid are both val; join them or rename one"):
        open_data(root)
