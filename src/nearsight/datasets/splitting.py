"""From one labelled set to train and val, and the checks every source passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from nearsight.datasets.labelled import LabelledImages, LabelledSplits, subset
from nearsight.images.imageset import BadImage, Images, Splits, name_ranks
from nearsight.text import printable

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_word(file_name: str) -> str | None:
    """The split a file name speaks of: 'imagenet-train-0003.tar' is train, 'photos.tar' none."""
    found = {SPLIT_WORDS[word] for word in re.split(r"[^a-z]+", file_name.lower()) if word in SPLIT_WORDS}
    return found.pop() if len(found) == 1 else None


def group_by_split(paths: Iterable[Path], root: Path) -> dict[str, list[Path]]:
    """Files by the split their name speaks of, or the folder they lie in below `root`; 'train' where neither does."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(paths):
        folder = SPLIT_WORDS.get(path.parent.name.lower()) if path.parent != root else None
        groups.setdefault(split_word(path.name) or folder or "train", []).append(path)
    return {split: groups[split] for split in ("train", "val", "test") if split in groups}


def check_parts(kind: str, parts: Mapping[str, Images], classes_of: Callable[[Images], object]) -> None:
    """There are training images, and the other parts have their classes."""
    if "train" not in parts:
        raise ValueError(f"{kind}: no training split among {', '.join(parts) or 'nothing'}; name one part 'train'")
    for split, images in parts.items():
        if classes_of(images) != classes_of(parts["train"]):
            raise ValueError(f"{kind}: train and {split} disagree about the classes")


def without_own_val(parts: Mapping[str, Images]) -> dict[str, Images]:
    """Parts whose val is still to be taken from train: the data's own val is test, where it has no test."""
    others = {split: images for split, images in parts.items() if split != "val"}
    return {"test": parts["val"], **others} if "val" in parts else others


def make_splits(
    kind: str,
    parts: dict[str, LabelledImages],
    *,
    seed: int,
    val_fraction: float,
    val_from: str = "data",
) -> LabelledSplits:
    """Fill in what is missing. `parts` has 'train' and perhaps 'val' and 'test'.

    Without val, or where it is to come from train, a share of train is set aside; a test split is never used for that
    unless val_fraction is 0.
    """
    if not 0 <= val_fraction < 1:
        raise ValueError(f"val_fraction must be in [0, 1), got {val_fraction}")
    if val_from == "train":
        if not val_fraction:
            raise ValueError("val_from train takes val from the training images: val_fraction must be above 0")
        parts = without_own_val(parts)
    check_parts(kind, parts, lambda images: images.classes)
    train, val, test = parts["train"], parts.get("val"), parts.get("test")
    _check_classes(kind, parts)
    if val is not None:
        how = "val as given"
    elif val_fraction > 0:
        train, val = split_by_class(train, seed=seed, val_fraction=val_fraction)
        how = f"val is {val_fraction:.0%} of each training class, by hash of seed {seed} and name"
    elif test is not None:
        val, how = test, "val IS the test split (val_fraction 0): do not select models on it"
    else:
        raise ValueError(f"{kind}: no val or test split, and val_fraction is 0: give a fraction such as 0.1")
    _check_readable(train)
    counts = [f"train {len(train)}", f"val {len(val)}"] + ([f"test {len(test)}"] if test is not None else [])
    origin = f"{kind}: {len(train.classes)} classes; {', '.join(counts)} images; {how}"
    return Splits(train, val, test, origin)


def split_by_class(images: LabelledImages, *, seed: int, val_fraction: float) -> tuple[LabelledImages, LabelledImages]:
    """(train, val): an image goes to val when the hash of (seed, name) says so.

    No image changes sides when others are added or removed, except that a class of at least two images always has
    one on each side.
    """
    ranks = name_ranks(images.names, seed)
    held_out = ranks < val_fraction
    for label, name in enumerate(images.classes):
        members = np.flatnonzero(images.labels == label)
        if len(members) == 1:
            raise ValueError(
                f"class {printable(name)!r} has a single image, which cannot be in train and val; add more or remove it"
            )
        if len(members):
            held_out[members[np.argmin(ranks[members])]] = True
            held_out[members[np.argmax(ranks[members])]] = False
    return subset(images, np.flatnonzero(~held_out)), subset(images, np.flatnonzero(held_out))


def encode_labels(values: Iterable[str], classes: Iterable[str] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class names per image to labels; classes in alphabetical order unless given."""
    listed = list(values)
    known = tuple(sorted(set(listed)) if classes is None else classes)
    position = {name: label for label, name in enumerate(known)}
    missing = sorted({name for name in listed if name not in position})
    if missing:
        shown = ", ".join(repr(printable(name)) for name in missing[:5])
        raise ValueError(
            f"classes without training images: {shown}; add some to the training images, or remove these classes from "
            "the others"
        )
    return np.array([position[name] for name in listed], dtype=np.int64), known


def _check_classes(kind: str, parts: dict[str, LabelledImages]) -> None:
    train = parts["train"]
    for name, times in Counter(train.classes).items():
        if times > 1:
            raise ValueError(f"{kind}: {times} classes are called '{printable(name)}'; give each a name of its own")
        if name and name.splitlines() != [name]:  # lists of classes have one a line
            raise ValueError(f"{kind}: the name of class '{printable(name)}' has a line break; rename it")
    if len(train) == 0:
        raise ValueError(f"{kind}: no images to train on")
    for split, images in parts.items():
        if len(images) == 0:
            raise ValueError(f"{kind}: the {split} split has no images; fill it or remove it")
    present = np.bincount(train.labels, minlength=len(train.classes))
    empty = [printable(train.classes[label]) for label in np.flatnonzero(present == 0)]
    if empty:
        raise ValueError(
            f"{kind}: no training images of class {', '.join(map(repr, empty[:5]))}; add some or remove it"
        )
    if len(train.classes) < 2:
        raise ValueError(f"{kind}: one class only ({printable(train.classes[0])!r}); a classifier needs two")


def _check_readable(train: LabelledImages) -> None:
    """Every class has an image that can be read. One read per class when all is well."""
    for label, name in enumerate(train.classes):
        first: BadImage | None = None
        members = np.flatnonzero(train.labels == label)
        for index in members:
            try:
                train.read(int(index))
                break
            except BadImage as bad:
                first = first or bad
        else:
            raise ValueError(f"class {printable(name)!r}: none of its {len(members)} images can be read; {first}")
