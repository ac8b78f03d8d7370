"""YOLO's text files: a line 'class centre-column centre-row width height' for each box, in fractions of the image."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nearsight.detection.dataset import BoxCollector
from nearsight.images.decode import read_image_size
from nearsight.images.files import PassedOver, pictures_below
from nearsight.images.formats import IMAGE_SUFFIXES, NO_PICTURES
from nearsight.text import printable
from nearsight.untrusted.files import read_text
from nearsight.untrusted.limits import LABELS_BYTES, LIST_BYTES, SETTINGS_BYTES
from nearsight.untrusted.plain_yaml import plain_yaml

_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def read_yolo(root: Path, files: list[Path], classes: tuple[str, ...]) -> BoxCollector:
    """Images below root, whose labels lie in the folder of the same path with 'images' turned into 'labels'."""
    collector = BoxCollector(root, classes)
    for number, file in enumerate(files, start=1):
        name = str(file.relative_to(root))
        size = read_image_size(file)
        if size is None:
            collector.note("unreadable images left out", printable(name))
            continue
        image = collector.add_image(name, size, number)
        labels = label_file(root, file)
        if labels.is_file():
            _read_labels(collector, image, size, labels)
    return collector


def label_file(root: Path, image: Path) -> Path:
    """images/…/a.jpg → labels/…/a.txt; without a folder 'images' below the root, a.txt lies beside a.jpg."""
    parts = list(image.relative_to(root).parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == "images"]
    if places:
        parts[places[-1]] = "labels"
    return (root / Path(*parts)).with_suffix(".txt")


def _read_labels(collector: BoxCollector, image: int, size: tuple[int, int], path: Path) -> None:
    height, width = size
    for number, line in enumerate(read_text(path, LABELS_BYTES).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{printable(str(path))}, line {number}"
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            raise ValueError(f"{where}: {printable(repr(line.strip()))} is not a line of numbers") from None
        if len(values) != 5:
            raise ValueError(
                f"{where}: a box is 'class column row width height', but there are {len(values)} numbers; write "
                "the box around an outline"
            )
        label, col, row, wide, high = values
        if not label.is_integer():
            raise ValueError(f"{where}: class {label:g} is not a whole number; classes count from 0")
        if max(abs(value) for value in values[1:]) > 1.5:
            raise ValueError(
                f"{where}: {values[1:]} are not fractions of the image; divide pixels by its width and height"
            )
        corners = (
            (col - wide / 2) * width,
            (row - high / 2) * height,
            (col + wide / 2) * width,
            (row + high / 2) * height,
        )
        collector.add_box(image, corners, int(label), where)


def find_yolo(root: Path, passed: PassedOver) -> tuple[tuple[str, ...], dict[str, list[Path]]] | None:
    """Class names and the images of each split, or None where nothing looks like YOLO's layout.

    Files among the images that are not read are counted in `passed`.
    """
    settings_file = next(
        (root / name for name in ("data.yaml", "data.yml", "dataset.yaml") if (root / name).is_file()), None
    )
    settings = _settings(settings_file) if settings_file else {}
    splits = _split_images(root, settings, settings_file, passed)
    labelled = settings_file or any(label_file(root, file).is_file() for own in splits.values() for file in own)
    if not splits or not labelled:
        return None
    return _classes(root, settings, settings_file), splits


def _settings(path: Path) -> dict[str, Any]:
    text = read_text(path, SETTINGS_BYTES)
    try:
        content = plain_yaml(text)
    except ValueError as error:
        raise ValueError(f"{printable(str(path))}: not valid yaml ({printable(str(error))})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{printable(str(path))}: expected names and the folders of train and val")
    return content


def _split_images(
    root: Path, settings: dict[str, Any], settings_file: Path | None, passed: PassedOver
) -> dict[str, list[Path]]:
    """The images of each split: those that the settings state, else those of the customary folders."""
    found: dict[str, list[Path]] = {}
    for split, words in _SPLITS.items():
        if stated := [settings[word] for word in words if settings.get(word)]:
            found[split] = _stated_images(
                root, settings, stated[0], f"{printable(str(settings_file))}: {split}", passed
            )
            continue
        customary = [root / place for word in words for place in (f"images/{word}", f"{word}/images", word)]
        if images := next(filter(None, (_images_below(place, passed) for place in customary)), None):
            found[split] = images
    if not found and (root / "images").is_dir():
        found["train"] = _images_below(root / "images", passed)
    return found


def _stated_images(root: Path, settings: dict[str, Any], stated: Any, where: str, passed: PassedOver) -> list[Path]:
    """Of a folder, a .txt that lists images, or a list of such. They start at the settings' `path`, or at root."""
    bases = [base for base in (_below(root, root, settings.get("path")), root) if base is not None]
    images: list[Path] = []
    for entry in stated if isinstance(stated, list) else [stated]:
        places = [place for base in bases if (place := _below(root, base, entry)) is not None]
        if folder := next((place for place in places if place.is_dir()), None):
            images += _images_below(folder, passed)
        elif listed := next((place for place in places if place.suffix == ".txt" and place.is_file()), None):
            images += _listed_images(root, [listed.parent, *bases], listed)
        else:
            raise ValueError(
                f"{where}: {printable(repr(entry))} is neither a folder nor a .txt list below {printable(str(root))}; "
                "correct or remove it"
            )
    if not images:
        raise ValueError(f"{where}: there are no images in {printable(repr(stated))}; correct or remove it")
    return sorted(set(images))


def _listed_images(root: Path, bases: list[Path], listed: Path) -> list[Path]:
    """The images that the lines of a text file name."""
    images = []
    for number, line in enumerate(read_text(listed, LIST_BYTES).splitlines(), start=1):
        if not line.strip():
            continue
        places = (_below(root, base, line.strip()) for base in bases)
        image = next((place for place in places if place is not None and place.is_file()), None)
        if image is None or image.suffix.lower() not in IMAGE_SUFFIXES:
            raise ValueError(
                f"{printable(str(listed))}, line {number}: {printable(line.strip())} is not an image below "
                f"{printable(str(root))}; correct or remove the line"
            )
        images.append(image)
    return images


def _below(root: Path, base: Path, stated: Any) -> Path | None:
    """A stated path, from `base` on, if it stays below root; '../' at its start, which exporters write, is dropped."""
    if not isinstance(stated, str):
        return None
    stated = stated.replace("\\", "/")
    if os.path.isabs(stated):
        base, stated = root, os.path.relpath(stated, root.absolute())
    else:
        stated = re.sub(r"^(\./|\.\./)+", "", stated)
    return None if ".." in Path(stated).parts else base / stated


def _images_below(folder: Path, passed: PassedOver) -> list[Path]:
    own = PassedOver()
    found = [folder / name for name in pictures_below(folder, own)]
    own.counts.pop(f".txt ({NO_PICTURES})", None)  # labels may lie beside their images
    passed.merge(own)
    return found


def _classes(root: Path, settings: dict[str, Any], settings_file: Path | None) -> tuple[str, ...]:
    names = settings.get("names")
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            raise ValueError(f"{printable(str(settings_file))}: names must number the classes 0, 1, 2, …")
        names = [names[number] for number in range(len(names))]
    if isinstance(names, list) and names and all(isinstance(name, str | int) for name in names):
        return tuple(str(name) for name in names)
    listed = next((root / name for name in ("classes.txt", "obj.names") if (root / name).is_file()), None)
    if listed is not None:
        return tuple(line.strip() for line in read_text(listed, SETTINGS_BYTES).splitlines() if line.strip())
    raise ValueError(
        f"{printable(str(root))}: class names are not stated; add a data.yaml with names, or a classes.txt"
    )
