import pickle

import numpy as np
import pytest

from nearsight.datasets.labelled import ArrayImages, LabelledImages, first_classes, per_class_fraction, subset
from nearsight.images.imageset import BadImage, PackedNames
from nearsight.text import printable


@pytest.fixture
def images(picture) -> ArrayImages:
    pixels = np.stack([picture(seed, 5, 7) for seed in range(40)])
    return ArrayImages(pixels, np.arange(40) % 4, ("a", "b", "c", "d"))


def test_names_in_one_buffer():
    names = ["a/ü.jpg", "", "b\udcff.png", "row 17"]
    packed = pickle.loads(pickle.dumps(PackedNames(names)))
    assert list(packed) == names
    assert packed[-1] == "row 17"
    assert packed[1:3] == names[1:3]
    with pytest.raises(IndexError):
        packed[4]


def test_a_bad_image_survives_pickling():
    bad = pickle.loads(pickle.dumps(BadImage("x.jpg", "cut")))
    assert (bad.name, bad.reason, str(bad)) == ("x.jpg", "cut", "x.jpg: cut")


def test_printable_is_short_and_harmless():
    assert printable("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"
    assert len(printable("x" * 1000)) == 200


def test_parts_keep_images_labels_and_names_together(images):
    part = subset(subset(images, [7, 3, 22, 9]), [2, 0])
    assert isinstance(part, LabelledImages)
    assert list(part.names) == ["row 22", "row 7"]
    assert part.labels.tolist() == [2, 3]
    assert np.array_equal(part.read(0), images.read(22))
    assert pickle.loads(pickle.dumps(part)).fingerprint() == part.fingerprint()
    with pytest.raises(ValueError, match=r"0\.\.39"):
        subset(images, [40])


def test_a_fraction_of_every_class_is_nested_and_seeded(images):
    half, fifth = per_class_fraction(images, 0.5, 1), per_class_fraction(images, 0.2, 1)
    assert np.bincount(half.labels).tolist() == [5, 5, 5, 5]
    assert np.bincount(fifth.labels).tolist() == [2, 2, 2, 2]
    assert set(fifth.names) < set(half.names)
    assert set(half.names) != set(per_class_fraction(images, 0.5, 2).names)
    assert np.bincount(per_class_fraction(images, 0.001, 0).labels).tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match=r"\(0, 1\], got 0"):
        per_class_fraction(images, 0, 0)


def test_first_classes(images):
    few = first_classes(images, 2)
    assert few.classes == ("a", "b")
    assert set(few.labels) == {0, 1}
    assert len(few) == 20
    with pytest.raises(ValueError, match=r"1\.\.4, got 5"):
        first_classes(images, 5)
    with pytest.raises(ValueError, match=r"a split of 10 images has none of the first 2 classes \(a, b\); keep more"):
        first_classes(subset(images, range(3, 40, 4)), 2)


def test_fingerprints_notice_changes(images, picture):
    same = ArrayImages(np.stack([picture(seed, 5, 7) for seed in range(40)]), np.arange(40) % 4, ("a", "b", "c", "d"))
    assert images.fingerprint() == same.fingerprint()
    other = np.stack([picture(seed, 5, 7) for seed in range(1, 41)])
    prints = {
        images.fingerprint(),
        ArrayImages(other, images.labels, images.classes).fingerprint(),
        ArrayImages(other, images.labels[::-1], images.classes).fingerprint(),
        ArrayImages(other, images.labels, ("a", "b", "c", "e")).fingerprint(),
        subset(images, range(39)).fingerprint(),
    }
    assert len(prints) == 5


def test_labels_must_fit(picture):
    with pytest.raises(ValueError, match="2 images but 3 labels"):
        ArrayImages(np.zeros((2, 3, 3, 3), np.uint8), [0, 1, 0], ("a", "b"))
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1, got 0\.\.2"):
        ArrayImages(np.zeros((2, 3, 3, 3), np.uint8), [0, 2], ("a", "b"))
