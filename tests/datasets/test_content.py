"""The data is the data: a change of any byte of it is noticed, and what has not changed is not read again."""

from __future__ import annotations

import os
import tarfile
import time
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from nearsight.datasets import content
from nearsight.datasets.content import file_checksums
from nearsight.datasets.labelled import ArrayImages, subset
from nearsight.datasets.sources import open_data
from nearsight.detection.sources import open_detection
from nearsight.images.fingerprints import checksum, same_data


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "checksums"


def _folder(root, classes=("cat", "dog"), count=4):
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (60 * label, 10 * number, 5)).save(root / name / f"{number}.bmp")
    return root


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if not same_data(before[name], after[name])}


def test_all_images_of_two_classes_exchanged(tmp_path):
    root = _folder(tmp_path / "set")
    before = open_data(root).fingerprints
    (root / "cat").rename(root / "x")
    (root / "dog").rename(root / "cat")
    (root / "x").rename(root / "dog")
    after = open_data(root).fingerprints
    assert [value.partition(":")[0] for value in after.values()] == [
        value.partition(":")[0] for value in before.values()
    ]
    assert _changed(before, after) == {"train", "val"}


def test_two_thirds_of_an_npz_inverted(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6000, 2, 2, 3), dtype=np.uint8)
    labels = np.arange(6000) % 2
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    before = open_data(tmp_path / "a.npz").fingerprints
    others = np.arange(6000) % 6 != 0  # the rows that stood for all were every sixth
    pixels[others] = 255 - pixels[others]
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    assert _changed(before, open_data(tmp_path / "a.npz").fingerprints) == {"train", "val"}


def test_only_the_split_that_changed_is_another(tmp_path):
    root = _folder(tmp_path / "set", count=20)
    splits = open_data(root)
    before, name = splits.fingerprints, splits.val.names[0]
    Image.new("RGB", (8, 8), (1, 2, 3)).save(root / name)
    assert _changed(before, open_data(root).fingerprints) == {"val"}


def test_a_byte_in_a_shard_and_in_a_picture_with_boxes(tmp_path):
    stream = BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "BMP")  # whatever its name says, it is what its bytes are
    picture = stream.getvalue()

    def write_shard() -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for number in range(6):
                for suffix, data in (("png", picture), ("cls", b"%d" % (number % 2))):
                    member = tarfile.TarInfo(f"{number}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, BytesIO(data))

    root = tmp_path / "boxes"
    (root / "images").mkdir(parents=True)
    (root / "data.yaml").write_text("names: [a]\ntrain: images\nval: images\n")
    for number in range(3):
        (root / "images" / f"{number}.png").write_bytes(picture)
    (root / "labels").mkdir()
    for number in range(3):
        (root / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    write_shard()
    before = open_data(tmp_path / "a.tar").fingerprints, open_detection(root).fingerprints
    picture = picture[:-1] + b"\1"
    write_shard()
    (root / "images" / "1.png").write_bytes(picture)
    assert _changed(before[0], open_data(tmp_path / "a.tar").fingerprints) == {"train", "val"}
    assert _changed(before[1], open_detection(root).fingerprints) == {"train", "val"}


def test_a_file_is_read_once(tmp_path, monkeypatch, cache):
    root = _folder(tmp_path / "set")
    names = [f"{name}/{number}.bmp" for name in ("cat", "dog") for number in range(4)]
    monkeypatch.setattr(content, "_SETTLED", -1)
    reads: list[str] = []
    plain = content.read_bytes
    monkeypatch.setattr(content, "read_bytes", lambda path, most: (reads.append(str(path)), plain(path, most))[1])
    first = file_checksums(root, names)
    assert first[3].tobytes() == checksum((root / names[3]).read_bytes())
    assert len([path for path in reads if path.endswith(".bmp")]) == 8
    reads.clear()
    assert np.array_equal(file_checksums(root, names[::-1])[::-1], first)
    assert [path for path in reads if path.endswith(".bmp")] == []
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")  # damaged: everything is read again
    assert np.array_equal(file_checksums(root, names), first)
    assert len([path for path in reads if path.endswith(".bmp")]) == 8


@pytest.mark.parametrize("how", ["in place, times put back", "another file, times put back", "just now"])
def test_what_is_remembered_is_of_the_file_as_it_is(tmp_path, monkeypatch, how):
    root = _folder(tmp_path / "set", count=1)
    if how != "just now":
        monkeypatch.setattr(content, "_SETTLED", -1)
    file = root / "cat" / "0.bmp"
    before, status = file_checksums(root, ["cat/0.bmp"]), file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    if how == "another file, times put back":
        (root / "new").write_bytes(data)
        os.replace(root / "new", file)
    elif how == "just now":  # within the same tick of the file system's clock
        file.write_bytes(data)
        real = os.stat
        monkeypatch.setattr(
            content.os, "stat", lambda path, **options: status if str(path) == str(file) else real(path)
        )
    else:
        time.sleep(0.02)
        file.write_bytes(data)
    if how != "just now":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not np.array_equal(file_checksums(root, ["cat/0.bmp"]), before)


def test_what_cannot_be_read_counts_as_nothing_and_is_not_remembered(tmp_path, monkeypatch):
    root = _folder(tmp_path / "set", count=2)
    monkeypatch.setattr(content, "_SETTLED", -1)
    os.mkfifo(root / "pipe.bmp")
    found = file_checksums(root, ["cat/0.bmp", "gone.bmp", "pipe.bmp", "cat"])
    assert found.any(axis=1).tolist() == [True, False, False, False]
    (root / "gone.bmp").write_bytes((root / "cat" / "0.bmp").read_bytes())
    assert file_checksums(root, ["gone.bmp"])[0].tolist() == found[0].tolist()


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path / "file"))
    assert file_checksums(_folder(tmp_path / "set"), ["cat/0.bmp"]).any()


def test_outlines_are_those_of_earlier_records():
    """Records of runs and results that were made before contents were part of a fingerprint are still recognised."""
    images = ArrayImages(np.arange(54, dtype=np.uint8).reshape(2, 3, 3, 3), [0, 1], ("a", "b"))
    earlier = (
        "992a68fb5aafc0fed699abfadc1a72566ad4161f9f629d6928ca13b8f09326f9",
        "7e3b951b8295cb7894fbb9e1d8f6ba12ca16258e6c8ed3a6a7e9506722b13009",
    )
    for known, now in zip(earlier, (images, subset(images, [1])), strict=True):
        assert now.outline() == known
        assert same_data(known, now.fingerprint())


@pytest.mark.parametrize(
    ("known", "now", "same"),
    [
        ("a:1", "a:1", True),
        ("a:1", "a:2", False),
        ("a:1", "b:1", False),
        ("a", "a:1", True),
        ("a:1", "a", True),
        ("a", "b:1", False),
        (None, "a:1", False),
        (7, 7, True),
        (7, 8, False),
        ("", "a:1", False),
    ],
)
def test_fingerprints_agree_as_far_as_both_reach(known, now, same):
    assert same_data(known, now) is same
