"""Tables and lists of names and labels, as people have them."""

import csv
import io
import zipfile

import pytest

from nearsight.datasets.sources import open_data, open_images


@pytest.fixture
def flat(image_folder):
    """Pictures 000 to 005 in photos/all."""
    return image_folder({"all": 6})


def write(path, *rows, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


NAMES = [f"{number:03d}.png" for number in range(6)]
KINDS = ["ox", "yak", "ox", "yak", "ox", "yak"]


@pytest.mark.parametrize(
    ("header", "name", "delimiter"),
    [
        (("filename", "label"), "{}", ","),
        (("id", "breed"), "{stem}", ","),  # without an extension, and the only other column
        (("Image_Path", "Class"), "all/{}", ";"),
        (("path", "species"), "/home/somebody/photos/all/{}", "\t"),
        (("picture on disk", "Kind of animal"), "..\\all\\{}", ","),
    ],
)
@pytest.mark.parametrize("given", ["table", "folder"])
def test_a_table_of_names_and_labels(flat, header, name, delimiter, given):
    rows = [(name.format(file, stem=file[:3]), kind) for file, kind in zip(NAMES, KINDS, strict=True)]
    table = write(flat / "labels.csv", header, *rows, delimiter=delimiter)
    splits = open_data(table if given == "table" else flat, val_fraction=0.4)
    labels = {}
    for images in (splits.train, splits.val):
        labels |= {name: images.classes[label] for name, label in zip(images.names, images.labels, strict=True)}
    assert labels == {f"all/{file}": kind for file, kind in zip(NAMES, KINDS, strict=True)}
    assert "labels.csv: 2 classes; " in splits.origin
    assert splits.not_read == {}


def test_a_column_says_the_split_and_numbers_are_in_their_order(flat):
    splits = ["train"] * 4 + ["valid", "test"]
    rows = zip(NAMES, (10, 9, 10, 9, 9, 10), splits, strict=True)
    found = open_data(write(flat / "set.csv", ("file", "target", "split"), *rows))
    assert (len(found.train), len(found.val), len(found.test)) == (4, 1, 1)
    assert found.train.classes == ("9", "10")
    assert found.train.labels.tolist() == [1, 0, 1, 0]


def test_tables_by_split_and_lists_of_paths(flat):
    for split, part in (("train", slice(0, 4)), ("val", slice(4, 6))):
        lines = [f"all/{name} {kind}" for name, kind in zip(NAMES[part], KINDS[part], strict=True)]
        (flat / f"{split}.txt").write_text("\n".join(lines) + "\n")
    splits = open_data(flat)
    assert (len(splits.train), len(splits.val)) == (4, 2)
    assert splits.val.classes == ("ox", "yak")
    assert open_images(flat / "val.txt").images.labels.tolist() == [0, 1]


def test_a_list_of_paths_alone_has_the_folders_as_classes(image_folder):
    root = image_folder({"grey wolf": 3, "fox": 3})
    (root / "train.txt").write_text("".join(f"{name}/00{n}.png\n" for n in range(3) for name in ("grey wolf", "fox")))
    assert open_data(root / "train.txt").train.classes == ("fox", "grey wolf")


def test_what_table_and_folder_disagree_about_is_counted(flat):
    rows = [*zip(NAMES[:4], KINDS, strict=False), ("gone.png", "ox"), ("004.png", ""), ("000.png", "ox")]
    splits = open_data(write(flat / "labels.csv", ("file", "label"), *rows))
    assert splits.not_read == {
        "listed in labels.csv, but not there": 1,
        "without a label": 1,
        "pictures that the table does not list": 1,
    }
    assert len(splits.train) + len(splits.val) == 4


def test_several_columns_may_be_labels(flat):
    rows = [(name, number, kind) for number, (name, kind) in enumerate(zip(NAMES, KINDS, strict=True))]
    table = write(flat / "meta.csv", ("image_id", "lesion", "dx"), *rows)
    with pytest.raises(ValueError, match=r"several columns .* \(image_id, lesion, dx\); choose by --label-column"):
        open_data(table)
    assert open_data(table, label_column="dx").train.classes == ("ox", "yak")
    assert open_data(flat, label_column="dx").train.classes == ("ox", "yak")
    with pytest.raises(ValueError, match="has no column 'kind', but image_id, lesion, dx"):
        open_data(flat, label_column="kind")


def test_columns_of_zeros_and_ones_are_classes(flat):
    header, ones = ("image", "MEL", "NV", "BCC"), ("1.0,0.0,0.0", "0.0,1.0,0.0")
    rows = [(name, *ones[number % 2].split(",")) for number, name in enumerate(NAMES)]
    splits = open_data(write(flat / "truth.csv", header, *rows))
    assert splits.train.classes == ("MEL", "NV")
    rows[3] = (NAMES[3], "1.0", "1.0", "0.0")
    with pytest.raises(
        ValueError, match="a picture is MEL and NV at once; several labels for one picture are not learned"
    ):
        open_data(write(flat / "truth.csv", header, *rows))


def test_several_labels_in_one_place_are_refused(flat):
    rows = [(name, "dress|new" if number == 3 else "dress") for number, name in enumerate(NAMES)]
    with pytest.raises(ValueError, match=r"all/003\.png is 'dress\|new', 2 labels; several labels for one picture"):
        open_data(write(flat / "tags.csv", ("file", "tags"), *rows))


def test_class_folders_beside_a_table_without_a_label_column_are_told(image_folder):
    root = image_folder({"part_1": 3, "part_2": 3})
    write(root / "meta.csv", ("image_id", "lesion", "dx"), ("part_1/000.png", 1, "mel"))
    (note,) = open_data(root).notes
    assert "1 it names pictures, but several columns may be their labels: see --label-column, such as meta.csv" in note
    (root / "meta.csv").unlink()
    with pytest.raises(ValueError, match="there is no table of names and labels whose column 'x' could be taken"):
        open_data(root, label_column="x")


def test_names_that_fit_several_pictures_and_labels_that_disagree_are_refused(image_folder):
    root = image_folder({"a": 2, "b": 2})
    table = write(root / "labels.csv", ("file", "label"), ("000.png", "ox"), ("001.png", "yak"))
    with pytest.raises(ValueError, match=r"000\.png may be .*/000\.png or .*/000\.png; write the path"):
        open_data(table)
    write(table, ("file", "label"), ("x/a/000.png", "ox"), ("a/000.png", "yak"))
    with pytest.raises(ValueError, match=r"a/000\.png has two labels, ox and yak; remove a row"):
        open_data(table)
    write(table, ("file", "label"), ("other.png", "ox"))
    with pytest.raises(ValueError, match=r"no column names pictures in .*; it has the columns file, label"):
        open_data(table)
    write(table, ("file", "label", "split"), ("a/000.png", "ox", "later"))
    with pytest.raises(ValueError, match=r"a/000\.png has the split 'later', not train, val or test"):
        open_data(table)


def test_a_parquet_table_of_names(flat):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"image": NAMES, "label": KINDS}), flat / "labels.parquet")
    assert open_data(flat / "labels.parquet").train.classes == ("ox", "yak")


def test_an_archive_with_a_table(flat, tmp_path, monkeypatch):
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path / "cache"))
    text = io.StringIO()
    csv.writer(text).writerows([("file", "label"), *zip(NAMES, KINDS, strict=True)])
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("labels.csv", text.getvalue())
        for file in (flat / "all").iterdir():
            archive.write(file, f"all/{file.name}")
    assert open_data(tmp_path / "set.zip").train.classes == ("ox", "yak")


def test_a_missing_picture_is_not_replaced_by_one_of_another_folder(image_folder):
    """test/ was not copied, and its pictures are called as those of train/ are."""
    folder = image_folder({"train": 6})
    write(folder / "train.csv", ("path", "label"), *((f"train/{n}", k) for n, k in zip(NAMES, KINDS, strict=True)))
    write(folder / "test.csv", ("path", "label"), *((f"test/{n}", "ox") for n in NAMES))
    found = open_data(folder, val_fraction=0.4)
    assert found.test is None
    assert len(found.train) + len(found.val) == 6
    assert [count for reason, count in found.not_read.items() if "not there" in reason] == [6]
