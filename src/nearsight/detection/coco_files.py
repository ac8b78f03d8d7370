"""COCO's json: images, categories and annotations with [left, top, width, height]."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from nearsight.detection.dataset import BoxCollector, safe_relative
from nearsight.text import printable
from nearsight.untrusted.files import read_text
from nearsight.untrusted.limits import COCO_BYTES


def read_coco(path: Path, split: str) -> BoxCollector:
    """One annotation file; its images are looked for beside it and where COCO and its tools put them."""
    shown = printable(str(path))
    content = _load(path, shown)
    categories, images, annotations = (_list(content, key, shown) for key in ("categories", "images", "annotations"))
    ids = [_integer(entry, "id", f"{shown}, category {place}") for place, entry in enumerate(categories)]
    label_of = {number: label for label, number in enumerate(ids)}
    if len(label_of) != len(ids):
        raise ValueError(f"{shown}: two categories have the same id")
    paths = [
        safe_relative(_string(entry, "file_name", f"{shown}, image {place}"), f"{shown}, image {place}")
        for place, entry in enumerate(images)
    ]
    root = _image_root(path, split, paths, shown)
    names = [_string(entry, "name", f"{shown}, category {entry.get('id')}") for entry in categories]
    collector = BoxCollector(root, names, ids)
    position: dict[int, int] = {}
    for place, (entry, relative) in enumerate(zip(images, paths, strict=True)):
        where = f"{shown}, image {place} ({printable(relative)})"
        number = _integer(entry, "id", where)
        if number in position:
            raise ValueError(f"{where}: id {number} is that of another image; ids must be unique")
        size = (_integer(entry, "height", where), _integer(entry, "width", where))
        position[number] = collector.add_image(relative, size, number)
    for place, entry in enumerate(annotations):
        where = f"{shown}, annotation {entry.get('id', place)}"
        number = _integer(entry, "image_id", where)
        if number not in position:
            raise ValueError(f"{where}: there is no image with id {number}")
        where += f" (image {printable(paths[position[number]])})"
        category = _integer(entry, "category_id", where)
        if category not in label_of:
            raise ValueError(f"{where}: category {category} is not declared; add it to categories or remove the box")
        corners = _corners(entry.get("bbox"), where)
        crowd = entry.get("iscrowd", 0)
        if crowd not in (None, 0, 1):
            raise ValueError(f"{where}: iscrowd must be 0 or 1, not {printable(repr(crowd))}")
        label, area = label_of[category], _area(entry.get("area"))
        collector.add_box(position[number], corners, label, where, crowd=bool(crowd), area=area)
    return collector


def looks_like_coco(path: Path) -> bool:
    """Cheap: whether the first kilobytes of a json have COCO's keys, or its name is one of COCO's."""
    try:
        with open(path, "rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    return path.name.startswith("instances_") or any(
        key in start for key in (b'"images"', b'"annotations"', b'"categories"')
    )


def _load(path: Path, shown: str) -> dict[str, Any]:
    text = read_text(path, COCO_BYTES)
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(f"{shown}: nested too deeply to be COCO annotations") from None
    except ValueError as error:  # also for a number of thousands of digits
        raise ValueError(f"{shown}: not valid json ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{shown}: expected an object with images, annotations and categories")
    return content


def _list(content: dict[str, Any], key: str, shown: str) -> list[dict[str, Any]]:
    entries = content.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{shown}: {key!r} must be a list of objects, as in COCO's annotation files")
    return entries


def _number(value: Any) -> float | None:
    """None for what is no number; infinity for a whole number that is larger than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _integer(entry: dict[str, Any], key: str, where: str) -> int:
    value: Any = entry.get(key)
    number = _number(value)
    if number is None or not abs(number) < 2**62 or not number.is_integer():
        raise ValueError(f"{where}: {key} must be a whole number, not {printable(repr(value))}")
    return int(value)


def _string(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {key} must be a text, not {printable(repr(value))}")
    return value


def _corners(value: Any, where: str) -> tuple[float, float, float, float]:
    """COCO's [left, top, width, height] as (left, top, right, bottom)."""
    sides = value if isinstance(value, list) else []
    numbers = [number for side in sides if (number := _number(side)) is not None]
    if len(sides) != 4 or len(numbers) != 4:
        raise ValueError(f"{where}: bbox must be [left, top, width, height], not {printable(repr(value))}")
    left, top, width, height = numbers
    return left, top, left + width, top + height


def _area(value: Any) -> float | None:
    """The object's own, where a number says so."""
    number = _number(value)
    return None if number is None or not math.isfinite(number) else number


def _image_root(path: Path, split: str, paths: list[str], shown: str) -> Path:
    """The first folder, of those where images are customarily kept, that holds the first image."""
    if not paths:
        raise ValueError(f"{shown}: no images")
    here, above = path.parent, path.parent.parent
    own = path.stem.rpartition("_")[2]  # instances_train2017 → train2017
    folders = [here, here / "images", here / own, here / split, here / "images" / split]
    if here.name in ("annotations", "labels"):
        folders += [
            above / own,
            above / split,
            above / "images" / own,
            above / "images" / split,
            above / "images",
            above,
        ]
    for folder in folders:
        if (folder / paths[0]).is_file():
            return folder
    tried = ", ".join(printable(str(folder)) for folder in folders[:4])
    raise ValueError(f"{shown}: image {printable(paths[0])} is in none of {tried}")
