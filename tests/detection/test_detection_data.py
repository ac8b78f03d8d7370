"""Reading boxes: three formats, each with everything that goes wrong in them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from nearsight.detection.sources import open_detection, open_parts
from nearsight.images.imageset import BadImage

SIZE = (60, 80)  # height, width


def save_image(path, size=SIZE):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, cols = np.indices(size)
    Image.fromarray(np.stack((rows * 3, cols * 2, rows + cols), -1).astype(np.uint8)).save(path)


def coco(images=2, boxes=(), categories=None):
    return {
        "images": [{"id": 7 + n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in range(images)],
        "annotations": [
            {"id": n + 1, "image_id": 7, "category_id": 3, "bbox": list(box)} for n, box in enumerate(boxes)
        ],
        "categories": categories or [{"id": 3, "name": "cell"}, {"id": 9, "name": "dust"}],
    }  # fmt: skip


def write_coco(root, content, name="train.json"):
    for n in range(4):
        save_image(root / "images" / f"{n}.png")
    (root / name).write_text(json.dumps(content))
    return root


def test_coco_folder(tmp_path):
    content = coco(boxes=[(10, 5, 20, 30)])
    content["annotations"].append({"id": 5, "image_id": 8, "category_id": 9, "bbox": [1.5, 2, 3, 4.5], "area": 6.0})
    splits = open_detection(write_coco(tmp_path, content), val_fraction=0.4)
    both = {name: split.annotations(0) for split in (splits.train, splits.val) for name in split.names}
    assert splits.train.classes == ("cell", "dust")
    assert splits.train.category_ids == (3, 9)
    assert both["0.png"].boxes.tolist() == [[10, 5, 30, 35]]
    assert both["0.png"].areas.tolist() == [600]
    assert both["1.png"].boxes.tolist() == [[1.5, 2, 4.5, 6.5]]
    assert (both["1.png"].labels.tolist(), both["1.png"].areas.tolist()) == ([1], [6.0])
    assert splits.train.read(0).shape == (*SIZE, 3)
    assert "val is 40% of train" in splits.origin


def test_val_may_come_from_train_although_the_data_has_a_val_split(tmp_path):
    content = coco(4, boxes=[(10, 5, 20, 30)])
    content["annotations"] += [
        {**content["annotations"][0], "id": 5, "image_id": image["id"]} for image in content["images"]
    ]
    write_coco(tmp_path, content)
    write_coco(tmp_path, content, "val.json")
    given = open_detection(tmp_path)
    taken = open_detection(tmp_path, val_fraction=0.4, val_from="train")
    assert (len(given.train), given.test) == (4, None)
    assert (len(taken.train) + len(taken.val), len(taken.test)) == (4, 4)


def test_cocos_own_folder_and_roboflows(tmp_path):
    official = tmp_path / "official"
    for split in ("train2017", "val2017"):
        save_image(official / split / "0.png")
        path = official / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(coco(1, [(1, 1, 9, 9)])))
        (official / "annotations" / f"captions_{split}.json").write_text(json.dumps({"images": [], "annotations": []}))
    exported = tmp_path / "exported"
    for split in ("train", "valid", "test"):
        save_image(exported / split / "0.png")
        (exported / split / "_annotations.coco.json").write_text(json.dumps(coco(1, [(1, 1, 9, 9)])))
    assert "train 1 images with 1 boxes, val 1 images" in open_detection(official).origin
    splits = open_detection(exported)
    assert splits.test is not None
    assert splits.test.read(0).shape == (*SIZE, 3)


@pytest.mark.parametrize(
    ("box", "note"),
    [
        ((-10, -10, 30, 30), "1 boxes cut at the image's edge"),
        ((70, 50, 40, 40), "1 boxes cut at the image's edge"),
        ((5, 5, 0, 10), "1 boxes without area left out"),
        ((200, 200, 10, 10), "1 boxes outside their image left out"),
        ((-30, 5, 20, 20), "1 boxes outside their image left out"),
    ],
)
def test_boxes_at_and_over_the_edge_are_handled_and_told(tmp_path, box, note):
    parts = open_parts(write_coco(tmp_path, coco(3, [(10, 10, 20, 20), box])))
    assert any(note in line and "train.json, annotation 2 (image 0.png)" in line for line in parts.notes), parts.notes
    boxes = parts.sets["train"].boxes
    assert (boxes >= 0).all()
    assert (boxes <= (80, 60, 80, 60)).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 2, float("nan"), 4]}, r"annotation 1 \(image 0.png\).*not finite"),
        ({"bbox": [1, 2, float("inf"), 4]}, "not finite"),
        ({"bbox": [1, 2, 10**400, 4]}, "not finite"),
        ({"iscrowd": "0"}, r"annotation 1 \(image 0.png\): iscrowd must be 0 or 1, not '0'"),
        ({"bbox": [10, 10, -5, 5]}, r"annotation 1 \(image 0.png\).*wrong order"),
        ({"bbox": [1, 2, 3]}, r"bbox must be \[left, top, width, height\]"),
        ({"bbox": "1 2 3 4"}, r"bbox must be"),
        ({"bbox": [1, "2", 3, 4]}, r"bbox must be"),
        ({"category_id": 4}, r"annotation 1 \(image 0.png\): category 4 is not declared"),
        ({"image_id": 99}, "annotation 1: there is no image with id 99"),
        ({"image_id": "7"}, "image_id must be a whole number, not '7'"),
    ],
)
def test_bad_boxes_are_refused_by_file_and_box(tmp_path, change, message):
    content = coco(boxes=[(1, 2, 3, 4)])
    content["annotations"][0].update(change)
    with pytest.raises(ValueError, match=rf"train\.json.*{message}"):
        open_detection(write_coco(tmp_path, content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["images"][1].update(id=7), "id 7 is that of another image"),
        (lambda c: c["images"][0].update(file_name="../secret.png"), "leaves the data's folder"),
        (lambda c: c["images"][0].update(file_name="/etc/secret.png"), "leaves the data's folder"),
        (lambda c: c["images"][0].update(file_name="a/../../b.png"), "leaves the data's folder"),
        (lambda c: c["images"][0].update(file_name="..\\b.png"), "leaves the data's folder"),
        (lambda c: c["images"][0].update(file_name=3), "file_name must be a text, not 3"),
        (lambda c: c["images"][0].update(width=0), "an image of 0×60 pixels"),
        (lambda c: c["images"][0].update(height=None), "height must be a whole number, not None"),
        (lambda c: c["categories"].append({"id": 3, "name": "other"}), "two categories have the same id"),
        (lambda c: c["categories"].append({"id": 4, "name": "cell"}), "class 'cell' is declared twice"),
        (lambda c: c.pop("annotations"), "'annotations' must be a list of objects"),
        (lambda c: c.update(images=[]), "no images"),
        (lambda c: c.update(annotations=[]), "no boxes at all"),
    ],
)
def test_bad_coco_files_are_refused(tmp_path, change, message):
    content = coco(boxes=[(1, 2, 3, 4)])
    change(content)
    with pytest.raises(ValueError, match=message):
        open_detection(write_coco(tmp_path, content))


@pytest.mark.parametrize("text", ["[1, 2]", '{"images": ', "[" * 100_000])
def test_files_that_are_no_coco_are_refused(tmp_path, text):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"train\.json"):
        open_detection(path)


def test_crowds_are_kept_but_not_learned(tmp_path):
    content = coco(3, [(1, 2, 30, 40), (5, 5, 10, 10)])
    content["annotations"][0]["iscrowd"] = 1
    parts = open_parts(write_coco(tmp_path, content))
    part = parts.sets["train"]
    annotations = part.annotations(0)
    assert annotations.crowd.tolist() == [True, False]
    assert annotations.learnable().boxes.tolist() == [[5, 5, 15, 15]]
    assert part.most_boxes() == 1
    assert any("1 crowds" in note for note in parts.notes)
    assert any("2 images without boxes, kept as background" in note for note in parts.notes)


@pytest.mark.parametrize("area", [10**400, float("nan"), "6", True])
def test_an_area_that_is_no_number_is_that_of_the_box(tmp_path, area):
    content = coco(boxes=[(1, 2, 3, 4)])
    content["annotations"][0]["area"] = area
    assert open_parts(write_coco(tmp_path, content)).sets["train"].areas.tolist() == [12]


def test_a_split_without_boxes_is_refused(tmp_path):
    one_box = coco(3, boxes=[(1, 2, 3, 4)])
    with pytest.raises(ValueError, match=r"(train|val) has [12] images without a single box; add a val split, or set"):
        open_detection(write_coco(tmp_path, one_box))
    write_coco(tmp_path, coco(), "val.json")
    with pytest.raises(ValueError, match="val has 2 images without a single box; add some"):
        open_detection(tmp_path)
    crowd = coco(boxes=[(1, 2, 3, 4)])
    crowd["annotations"][0]["iscrowd"] = 1
    write_coco(tmp_path, crowd, "val.json")
    with pytest.raises(ValueError, match="val has 2 images without a single box"):
        open_detection(tmp_path)


def test_images_that_are_in_two_splits_are_warned_of(tmp_path):
    write_coco(tmp_path, coco(2, boxes=[(1, 2, 3, 4)]))
    write_coco(tmp_path, coco(1, boxes=[(1, 2, 3, 4)]), "val.json")
    (note,) = (note for note in open_detection(tmp_path).notes if note.startswith("warning"))
    assert "1 images of val are in train too" in note
    assert "0.png" in note


def test_parts_are_read_as_they_are(tmp_path):
    """To measure on, nothing is set aside and no training part is needed."""
    write_coco(tmp_path, coco(4, boxes=[(1, 2, 3, 4)]), "test.json")
    assert {name: len(images) for name, images in open_parts(tmp_path).sets.items()} == {"test": 4}
    assert {name: len(images) for name, images in open_parts(tmp_path / "test.json").sets.items()} == {"train": 4}
    with pytest.raises(ValueError, match="no training split among test; name one part 'train'"):
        open_detection(tmp_path)


def test_splits_must_agree_about_classes(tmp_path):
    write_coco(tmp_path, coco(boxes=[(1, 2, 3, 4)]))
    write_coco(tmp_path, coco(boxes=[(1, 2, 3, 4)], categories=[{"id": 3, "name": "other"}]), "val.json")
    with pytest.raises(ValueError, match="train and val disagree about the classes"):
        open_detection(tmp_path)


def test_an_image_of_another_size_than_its_boxes_is_bad(tmp_path):
    images = open_parts(write_coco(tmp_path, coco(boxes=[(1, 2, 3, 4)]))).sets["train"]
    save_image(tmp_path / "images" / "0.png", (30, 40))
    with pytest.raises(BadImage, match="is 40×30, but its boxes are for 80×60"):
        images.read(0)


def voc_xml(objects, size=SIZE, filename="a.png"):
    boxes = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
        f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
        for name, box, difficult in objects
    )
    size_tag = f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"
    return f"<annotation><filename>{filename}</filename>{size_tag}{boxes}</annotation>"


def write_voc(root, xmls, lists=None):
    for name, text in xmls.items():
        save_image(root / "JPEGImages" / f"{name}.png")
        path = root / "Annotations" / f"{name}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for split, names in (lists or {}).items():
        path = root / "ImageSets" / "Main" / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(names))
    return root


def test_voc_folder(tmp_path):
    xmls = {
        "a": voc_xml([("rbc", (11, 6, 30, 35), 0), ("wbc", (1, 1, 80, 60), 1)]),
        "b": voc_xml([("wbc", (2, 3, 4, 5), 0)]),
    }
    splits = open_detection(write_voc(tmp_path, xmls, {"train": ["a"], "val": ["b"]}))
    assert splits.train.classes == ("rbc", "wbc")
    assert splits.train.annotations(0).boxes.tolist() == [[10, 5, 30, 35], [0, 0, 80, 60]]
    assert splits.train.annotations(0).crowd.tolist() == [False, True]
    assert splits.val.annotations(0).boxes.tolist() == [[1, 2, 4, 5]]
    assert splits.val.read(0).shape == (*SIZE, 3)


def test_a_voc_folder_without_training_images(tmp_path):
    write_voc(tmp_path, {"a": voc_xml([("rbc", (2, 3, 4, 5), 0)])}, {"val": ["a"]})
    assert open_parts(tmp_path).sets["val"].classes == ("rbc",)
    with pytest.raises(ValueError, match="no training split among val; name one part 'train'"):
        open_detection(tmp_path)


ENTITY = '<!DOCTYPE a [<!ENTITY x "y">]><annotation><filename>&x;</filename></annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTITY, "document types and entities are refused"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "document types and entities are refused"),
        ("<annotation>", "not valid xml"),
        ("<html/>", "not a VOC annotation"),
        pytest.param(
            f"<annotation>{'<a>' * 10**5}{'</a>' * 10**5}</annotation>", "nested more than 100 deep", id="deep"
        ),
        (voc_xml([("rbc", (30, 6, 11, 35), 0)]), "object 1: the box's corners are in the wrong order"),
        (voc_xml([("rbc", ("nan", 6, 11, 35), 0)]), "object 1: coordinates .* are not finite"),
        (voc_xml([("rbc", ("x", 6, 11, 35), 0)]), "object 1: bndbox/xmin must be a number, not 'x'"),
        (voc_xml([("", (1, 6, 11, 35), 0)]), "object 1: has no name"),
        (voc_xml([], size=(0, 80)), "size/height must be a positive whole number, not 0"),
    ],
)
def test_bad_voc_files_are_refused_by_file_and_object(tmp_path, text, message):
    write_voc(tmp_path, {"a": text, "b": voc_xml([("rbc", (2, 3, 4, 5), 0)])})
    with pytest.raises(ValueError, match=rf"a\.xml.*{message}"):
        open_detection(tmp_path)


def test_a_voc_file_cannot_name_an_image_elsewhere(tmp_path):
    write_voc(tmp_path, {"b": voc_xml([("rbc", (2, 3, 4, 5), 0)])})
    (tmp_path / "Annotations" / "c.xml").write_text(voc_xml([("rbc", (2, 3, 4, 5), 0)], filename="../../x.png"))
    with pytest.raises(ValueError, match=r"c\.xml.*leaves the data's folder"):
        open_detection(tmp_path)


def test_a_voc_class_that_training_lacks_is_refused(tmp_path):
    xmls = {"a": voc_xml([("rbc", (2, 3, 4, 5), 0)]), "b": voc_xml([("new", (2, 3, 4, 5), 0)])}
    with pytest.raises(ValueError, match=r"b\.xml, object 1: class 'new' does not occur in the training split"):
        open_detection(write_voc(tmp_path, xmls, {"train": ["a"], "val": ["b"]}))


def write_yolo(root, lines, names="names: [cell, dust]\ntrain: images/train\nval: images/val\n"):
    for split in ("train", "val"):
        save_image(root / "images" / split / "a.png")
        save_image(root / "images" / split / "empty.png")
        path = root / "labels" / split / "a.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines)
    if names:
        (root / "data.yaml").write_text(names)
    return root


def test_yolo_folder(tmp_path):
    splits = open_detection(write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5\n\n1 0.1 0.1 0.2 0.2\n"))
    assert splits.train.classes == ("cell", "dust")
    assert len(splits.train) == 2
    annotations = splits.train.annotations(list(splits.train.names).index("images/train/a.png"))
    np.testing.assert_allclose(annotations.boxes, [[30, 15, 50, 45], [0, 0, 16, 12]])
    assert annotations.labels.tolist() == [0, 1]
    assert splits.val.read(0).shape == (*SIZE, 3)


def test_yolo_with_a_list_of_classes_and_split_folders(tmp_path):
    save_image(tmp_path / "train" / "images" / "a.png")
    save_image(tmp_path / "train" / "images" / "b.png")
    (tmp_path / "train" / "labels").mkdir()
    (tmp_path / "train" / "labels" / "a.txt").write_text("0 0.5 0.5 0.25 0.5")
    (tmp_path / "classes.txt").write_text("cell\n")
    assert names_of(open_parts(tmp_path).sets["train"]) == ["train/images/a.png", "train/images/b.png"]


def test_yolo_files_that_are_not_read_are_told(tmp_path):
    root = write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5")
    (root / "images" / "train" / "z.cr2").touch()
    splits = open_detection(root)
    assert splits.not_read == {".cr2 (camera raw: export them as JPEG or PNG)": 1}
    assert any(note.startswith("warning: 1 of ") for note in splits.notes)


def test_yolo_images_that_cannot_be_read_are_told(tmp_path):
    write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5")
    (tmp_path / "images" / "train" / "broken.png").write_bytes(b"not an image")
    splits = open_detection(tmp_path)
    assert len(splits.train) == 2
    assert any("1 unreadable images left out (first: images/train/broken.png)" in note for note in splits.notes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.25", "there are 4 numbers"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3", "there are 7 numbers"),
        ("cell 0.5 0.5 0.25 0.5", "is not a line of numbers"),
        ("2 0.5 0.5 0.25 0.5", "there is no class 2; they count from 0 to 1"),
        ("-1 0.5 0.5 0.25 0.5", "there is no class -1; they count from 0 to 1"),
        ("0.5 0.5 0.5 0.25 0.5", "class 0.5 is not a whole number"),
        ("nan 0.5 0.5 0.25 0.5", "class nan is not a whole number"),
        ("0 nan 0.5 0.25 0.5", "not finite"),
        ("0 0.5 0.5 -0.25 0.5", "wrong order"),
        ("0 40 30 20 30", "not fractions of the image"),
    ],
)
def test_bad_yolo_lines_are_refused_by_file_and_line(tmp_path, line, message):
    with pytest.raises(ValueError, match=rf"a\.txt, line 2: .*{message}"):
        open_detection(write_yolo(tmp_path, f"0 0.5 0.5 0.25 0.5\n{line}"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("", "class names are not stated"),
        ("names: {0: a, 2: b}", "must number the classes"),
        ("names: {0: a, x: b}", "must number the classes"),
        ("names: [[a]]", "class names are not stated"),
        ("just text", "expected names and the folders"),
        ("a: [", "not valid yaml"),
    ],
)
def test_bad_yolo_settings_are_refused(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        open_detection(write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5", names))


def test_yolo_settings_cannot_point_elsewhere(tmp_path):
    outside = tmp_path / "outside"
    save_image(outside / "x.png")
    names = f"names: [cell, dust]\ntrain: {outside}\nval: images/val\n"
    with pytest.raises(ValueError, match=r"data\.yaml: train: .*outside' is neither a folder nor a \.txt list below"):
        open_detection(write_yolo(tmp_path / "data", "0 0.5 0.5 0.25 0.5", names))


def names_of(images):
    return [str(name) for name in images.names]


@pytest.mark.parametrize(
    "stated",
    [
        "train: lists/train.txt\nval: images/val",
        "path: .\ntrain: ./images/train\nval: [./images/val]",
        "path: images\ntrain: train\nval: [val]",
        "path: ../datasets/elsewhere\ntrain: ../images/train\nvalid: images/val",
        "train: {root}/images/train\nval: {root}/images/val",
    ],
)
def test_yolo_splits_are_those_that_are_stated(tmp_path, stated):
    lines = ["images/train/a.png", "", "./images/train/empty.png", "../images/train/a.png"]
    for folder in ("train", "valid"):  # customary places, which the settings overrule
        save_image(tmp_path / folder / "images" / "other.png")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_text("\n".join(lines))
    names = "names: [cell]\n" + stated.format(root=tmp_path)
    splits = open_detection(write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5", names))
    assert names_of(splits.train) == ["images/train/a.png", "images/train/empty.png"]
    assert names_of(splits.val) == ["images/val/a.png", "images/val/empty.png"]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("val: images/gone", r"data\.yaml: val: 'images/gone' is neither a folder nor a \.txt list"),
        ("val: [images/val, images/../../x]", r"val: 'images/../../x' is neither"),
        ("val: 3", "val: 3 is neither"),
        ("val: empty", "val: there are no images in 'empty'"),
        ("val: val.txt", r"val\.txt, line 2: ../../etc/b\.png is not an image below"),
    ],
)
def test_yolo_splits_that_cannot_be_used_are_refused(tmp_path, stated, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "val.txt").write_text("images/val/a.png\n../../etc/b.png\n")
    with pytest.raises(ValueError, match=message):
        open_detection(write_yolo(tmp_path, "0 0.5 0.5 0.25 0.5", f"names: [cell]\ntrain: images/train\n{stated}\n"))


def test_what_is_no_detection_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file or folder; detection data is COCO"):
        open_detection(tmp_path / "nowhere")
    save_image(tmp_path / "a.png")
    with pytest.raises(ValueError, match="no boxes found"):
        open_detection(tmp_path)
    with pytest.raises(ValueError, match="not detection data"):
        open_detection(tmp_path / "a.png")


def test_two_files_of_one_split_are_refused(tmp_path):
    write_coco(tmp_path, coco(boxes=[(1, 2, 3, 4)]), "a_train.json")
    write_coco(tmp_path, coco(boxes=[(1, 2, 3, 4)]), "b_train.json")
    with pytest.raises(ValueError, match=r"a_train\.json and b_train\.json are both train"):
        open_detection(tmp_path)


def test_the_fingerprint_follows_the_boxes(tmp_path):
    first, second = (
        open_parts(write_coco(tmp_path, coco(boxes=[(1, 2, 3, height)]))).sets["train"].fingerprint()
        for height in (4, 5)
    )
    assert first != second


def test_the_bundled_set_is_whole():
    splits = open_detection("bccd")
    assert splits.train.classes == ("RBC", "WBC", "Platelets")
    assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 12, 12)
    for split in (splits.train, splits.val, splits.test):
        for index in range(len(split)):
            assert split.read(index).shape == (240, 320, 3)
    assert splits.notes == ()


def test_recognising_data_does_not_wait_for_torch():
    code = (
        "import sys; from nearsight.detection.sources import has_boxes; "
        "print(has_boxes('bccd'), 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"
