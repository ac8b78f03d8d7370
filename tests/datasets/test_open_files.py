"""Arrays, parquet, shards, named and bundled sets."""

import io
import json
import socket
import tarfile

import numpy as np
import pytest
from PIL import Image

from nearsight.datasets.loading import load_all
from nearsight.datasets.shards import expand_braces
from nearsight.datasets.sources import open_data


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


# --- arrays


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW"])
def test_npz_with_official_splits(tmp_path, layout):
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (20, 5, 7, 3), dtype=np.uint8)
    stored = {"NHWC": rgb, "NCHW": rgb.transpose(0, 3, 1, 2), "NHW": rgb[..., 0]}[layout]
    labels = np.arange(20) % 3
    np.savez(
        tmp_path / "set.npz",
        train_images=stored,
        train_labels=labels[:, None],
        test_images=stored[:6],
        test_labels=labels[:6],
        classes=np.array(["x", "y", "z"]),
    )
    splits = open_data(tmp_path / "set.npz", val_fraction=0)
    assert splits.train.classes == ("x", "y", "z")
    assert splits.train.labels.tolist() == labels.tolist()
    expected = rgb[4] if layout != "NHW" else np.repeat(rgb[4, ..., :1], 3, axis=2)
    assert np.array_equal(splits.train.read(4), expected)
    assert splits.test.names[2] == "test row 2"
    assert load_all(splits.test, 5).shape == (6, 3, 5, 5)


def test_npz_without_splits_or_class_names(tmp_path):
    np.savez(tmp_path / "s.npz", images=np.zeros((30, 4, 4, 3), np.uint8), labels=np.arange(30) % 2)
    splits = open_data(tmp_path / "s.npz")
    assert splits.train.classes == ("0", "1")
    assert len(splits.train) + len(splits.val) == 30
    np.savez(tmp_path / "w.npz", images=np.zeros((30, 4, 4, 3), np.uint8), labels=np.array(["cat", "ant"] * 15))
    assert open_data(tmp_path / "w.npz").train.classes == ("ant", "cat")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((4, 3, 3, 3), np.float32), "labels": np.arange(4)}, "must be uint8"),
        ({"images": np.zeros((4, 5, 5, 5), np.uint8), "labels": np.arange(4)}, r"got \[4, 5, 5, 5\]"),
        ({"images": np.zeros((4, 3, 3, 3), np.uint8), "labels": np.arange(3)}, "4 images but 3 labels"),
        ({"images": np.zeros((4, 3, 3, 3), np.uint8)}, "images without labels"),
        ({"images": np.zeros((4, 3, 3, 3), np.uint8), "labels": np.ones(4)}, "integers or strings.*got float64"),
        (
            {"images": np.zeros((4, 3, 3, 3), np.uint8), "labels": np.array([5, 30_000_000, 7, 9])},
            "the largest label is 30000000, but there are only 4 images.*renumber them, or store them as strings",
        ),
        (
            {"images": np.zeros((4, 3, 3, 3), np.uint8), "labels": np.arange(4) % 3, "classes": ["a", "b", "a"]},
            "2 classes are called 'a'; give each a name of its own",
        ),
        ({"pictures": np.zeros(3)}, "expected arrays images and labels.*has pictures"),
        (
            {"images": np.array([{}], dtype=object), "labels": np.arange(1)},
            "not a readable .npz of plain arrays .*Object arrays",
        ),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "bad.npz")


def test_npz_with_bytes_for_words(tmp_path):
    pixels = np.zeros((30, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "b.npz", images=pixels, labels=np.array(["öx".encode(), b"ant"] * 15))
    np.savez(tmp_path / "c.npz", images=pixels, labels=np.arange(30) % 2, classes=np.array([b"ant", "öx".encode()]))
    for name in "bc":
        assert open_data(tmp_path / f"{name}.npz").train.classes == ("ant", "öx")


def test_npz_that_is_none(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ValueError, match=r"bad\.npz: not a readable \.npz"):
        open_data(tmp_path / "bad.npz")


# --- parquet


def test_parquet_as_the_hub_writes_it(tmp_path, picture):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}

    def write(name: str, count: int) -> None:
        rows = [{"bytes": png(picture(i)), "path": f"{i}.png"} for i in range(count)]
        table = arrow.table({"image": rows, "label": [i % 2 for i in range(count)]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        parquet.write_table(table, tmp_path / name, row_group_size=3)

    write("train-00000-of-00002.parquet", 7)
    write("train-00001-of-00002.parquet", 4)
    write("validation-00000-of-00001.parquet", 5)
    splits = open_data(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert (len(splits.train), len(splits.val), splits.test) == (11, 5, None)
    assert splits.train.names[8] == "train-00001-of-00002.parquet row 1"
    assert np.array_equal(splits.train.read(8), picture(1))


def test_parquet_with_words_for_labels_and_with_faults(tmp_path, picture):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = [png(picture(i)) for i in range(8)]
    parquet.write_table(arrow.table({"img": data, "class": ["b", "a"] * 4}), tmp_path / "all.parquet")
    splits = open_data(tmp_path / "all.parquet")
    assert splits.train.classes == ("a", "b")
    parquet.write_table(arrow.table({"img": data, "class": [b"b", b"a"] * 4}), tmp_path / "bytes.parquet")
    assert open_data(tmp_path / "bytes.parquet").train.classes == ("a", "b")
    (tmp_path / "both").mkdir()
    parquet.write_table(arrow.table({"img": data, "class": [0, 1] * 4}), tmp_path / "both" / "train.parquet")
    parquet.write_table(arrow.table({"img": data, "class": ["0", "1"] * 4}), tmp_path / "both" / "val.parquet")
    with pytest.raises(ValueError, match="labels are words in val and numbers in train; use one of the two"):
        open_data(tmp_path / "both")
    parquet.write_table(arrow.table({"img": data}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="no column for the labels"):
        open_data(tmp_path / "bad.parquet")
    (tmp_path / "junk.parquet").write_bytes(b"PAR1junk")
    with pytest.raises(ValueError, match=r"junk\.parquet"):
        open_data(tmp_path / "junk.parquet")


# --- shards


def write_tar(path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def shard(picture, keys: range) -> dict[str, bytes]:
    members = {}
    for key in keys:
        members[f"./s{key:03d}.png"] = png(picture(key))
        members[f"./s{key:03d}.cls"] = str(key % 2).encode()
    return members


def test_shards_in_exact_order(tmp_path, picture):
    write_tar(tmp_path / "set-train-000.tar", shard(picture, range(5)))
    write_tar(tmp_path / "set-train-001.tar", shard(picture, range(5, 9)))
    write_tar(tmp_path / "set-val-000.tar", shard(picture, range(20, 24)))
    for source in (tmp_path, tmp_path / "set-{train-000,train-001,val-000}.tar"):
        splits = open_data(source)
        assert (len(splits.train), len(splits.val)) == (9, 4)
        assert splits.train.names[6] == "set-train-001.tar/s006"
        assert splits.train.labels.tolist() == [key % 2 for key in range(9)]
        assert np.array_equal(splits.train.read(6), picture(6))
        assert np.array_equal(splits.val.read(3), picture(23))


def test_one_shard_with_json_and_long_names(tmp_path, picture):
    members = {}
    for key in range(12):
        name = f"{'deep/' * 30}{key:03d}"
        members[f"{name}.jpg"] = png(picture(key))
        members[f"{name}.json"] = json.dumps({"label": ["ox", "yak"][key % 2], "caption": "…"}).encode()
    write_tar(tmp_path / "all.tar", members)
    splits = open_data(tmp_path / "all.tar")
    assert splits.train.classes == ("ox", "yak")
    assert len(splits.train) + len(splits.val) == 12


def test_only_images_and_labels_are_decoded(tmp_path, picture):
    """Members that other readers would unpickle are counted, never opened."""
    members = shard(picture, range(20))
    members |= {"s000.pyd": b"cos\nsystem\n(S'touch owned'\ntR.", "s001.pkl": b"\x80\x04.", "s001.pt": b"PK", "s2": b""}
    write_tar(tmp_path / "mixed.tar", members)
    splits = open_data(tmp_path / "mixed.tar")
    assert sum(splits.not_read.values()) == 4
    (note,) = splits.notes
    assert note.startswith("warning: 4 of 24 files are not read: ")
    for kind in (".pyd", ".pkl", ".pt"):
        assert f"1 {kind} (not the extension of a picture that is read), such as s00" in note
    assert "1 without an extension (add .jpg, or what they are), such as s2" in note


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"../s9.png": b"x"}, r"refused member '\.\./s9\.png'"),
        ({"/s9.png": b"x"}, r"refused member '/s9\.png'"),
        ({"s000.jpg": b"x"}, "two images under the key 's000'"),
        ({"lonely.png": b"x"}, "lonely has no label"),
        ({"s9.json": b"[" * 100_000}, "not valid JSON"),
        ({"s9.cls": b"\xff"}, "not valid UTF-8"),
        ({"s9.cls": bytes(2**20 + 1)}, "larger than 1048576"),
    ],
)
def test_bad_shards(tmp_path, picture, extra, message):
    write_tar(tmp_path / "bad.tar", shard(picture, range(4)) | extra)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "bad.tar")


def test_a_shard_cut_short(tmp_path, picture):
    write_tar(tmp_path / "cut.tar", shard(picture, range(4)))
    data = (tmp_path / "cut.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:1800])
    with pytest.raises(ValueError, match=r"cut\.tar"):
        open_data(tmp_path / "cut.tar")


@pytest.mark.parametrize("source", ["pipe:cat x.tar", "https://example.org/x.tar", "s3://bucket/{0..3}.tar"])
def test_commands_and_addresses_are_refused(source):
    with pytest.raises(ValueError, match="refused as data"):
        open_data(source)


def test_braces():
    assert expand_braces("a-{08..11}-{x,y}.tar")[:3] == ["a-08-x.tar", "a-08-y.tar", "a-09-x.tar"]
    with pytest.raises(ValueError, match="not a range"):
        expand_braces("{5..2}.tar")
    with pytest.raises(ValueError, match=r"missing-0\.tar does not exist"):
        open_data("missing-{0..1}.tar")


# --- named and bundled sets


@pytest.fixture
def silence(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "pets", "flowers", "food101", "imagenet"])
def test_absent_sets_are_not_fetched(silence, monkeypatch, tmp_path, name):
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=rf"{name} is not in .*say where it is with {name}:FOLDER"):
        open_data(name)


def test_named_sets_from_their_files(image_folder, tmp_path, picture):
    root = image_folder({"train/n01": 3, "train/n02": 3, "val/n01": 1, "val/n02": 1})
    assert open_data(f"imagenet:{root}").train.classes == ("n01", "n02")
    pets = tmp_path / "pets" / "oxford-iiit-pet"
    (pets / "images").mkdir(parents=True)
    (pets / "annotations").mkdir()
    for split, numbers in (("trainval", range(8)), ("test", range(8, 12))):
        lines = []
        for number in numbers:
            breed = ("Abyssinian", "boxer")[number % 2]
            Image.fromarray(picture(number)).save(pets / "images" / f"{breed}_{number}.jpg", "PNG")
            lines.append(f"{breed}_{number} {number % 2 + 1} 1 1")
        (pets / "annotations" / f"{split}.txt").write_text("\n".join(lines))
    splits = open_data(f"pets:{tmp_path / 'pets'}", val_fraction=0.3)
    assert splits.train.classes == ("Abyssinian", "Boxer")
    assert len(splits.train) + len(splits.val) == 8
    assert splits.test.names[1] == "oxford-iiit-pet/images/boxer_9.jpg"
    assert np.array_equal(splits.test.read(1), picture(9))


def test_a_folder_wins_over_a_set_of_its_name(image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("clothing", "cifar10"):
        image_folder({"hat": 3, "shoe": 3}, name)
        assert open_data(name).train.classes == ("hat", "shoe")


def test_the_bundled_set(silence):
    splits = open_data("clothing")
    assert (len(splits.train), len(splits.val), len(splits.test)) == (2641, 380, 760)
    assert len(splits.train.classes) == 10
    assert splits.train.names[0].startswith("dress/")
    assert splits.train.read(2640).shape == (64, 64, 3)
    assert np.bincount(splits.train.labels).tolist() == [201, 104, 403, 172, 391, 238, 208, 180, 95, 649]
    assert "val as given" in splits.origin
