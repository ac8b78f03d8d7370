"""Makes src/nearsight/datasets/clothing64.npz from the image folder of the clothing dataset (train, validation, test).

    python scripts/make_clothing.py FOLDER src/nearsight/datasets/clothing64.npz

Each photograph is resized to 64 × 64 and stored as WebP, back to back in one array per split. Takes about two minutes.

The source's own splits have other mixes of classes in test than in train, so that a comparison of models there is
partly one of which classes they favour. All pictures are pooled here and split again: of each class a fifth is test and
a tenth val, in the order of a hash of names. Pictures that are nearly the same stay together.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nearsight.images.imageset import name_ranks

SIZE = (64, 64)
SEED = 0
SHARES = {"test": 0.2, "val": 0.1}  # the rest is train
ALIKE = 0.95  # pictures whose 16×16 miniatures correlate above this stay together


def encode(path: Path) -> bytes:
    out = io.BytesIO()
    with Image.open(path) as image:
        small = image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
    small.save(out, "WEBP", quality=80, method=6)
    return out.getvalue()


def miniature(encoded: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.resize((16, 16), Image.Resampling.BOX), np.float32)


def groups_of(miniatures: np.ndarray) -> np.ndarray:
    """The lowest index of the pictures that are like each one, mirrored or not, itself among them."""
    plain, mirrored = _unit(miniatures), _unit(miniatures[:, :, ::-1])
    alike = np.maximum(plain @ plain.T, plain @ mirrored.T)
    parent = list(range(len(plain)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for one, other in np.argwhere(np.triu(alike > ALIKE, 1)).tolist():
        parent[max(root(one), root(other))] = min(root(one), root(other))
    return np.array([root(index) for index in range(len(plain))])


def _unit(images: np.ndarray) -> np.ndarray:
    rows = images.reshape(len(images), -1).astype(np.float64)
    rows -= rows.mean(1, keepdims=True)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def split(names: Sequence[str], labels: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """The indices of every part, by name. Groups with pictures of two classes stay in train."""
    members = {one: np.flatnonzero(groups == one).tolist() for one in set(groups.tolist())}
    key = {one: min(names[index] for index in of_one) for one, of_one in members.items()}
    rank = dict(zip(key, name_ranks(key.values(), SEED), strict=True))
    part = np.full(len(groups), "train", dtype="<U5")
    for label in np.unique(labels):
        count = int((labels == label).sum())
        free = [one for one, of_one in members.items() if set(labels[of_one].tolist()) == {label}]
        order = iter(sorted(free, key=lambda one: (rank[one], key[one])))
        for name, share in SHARES.items():
            taken = 0
            while taken < round(share * count):
                of_one = members[next(order)]
                part[of_one] = name
                taken += len(of_one)
    by_name = np.argsort(np.array(names))
    return {name: by_name[part[by_name] == name] for name in ("train", "val", "test")}


def write(out: Path, names: Sequence[str], encoded: Sequence[bytes]) -> None:
    """The file: names are CLASS/FILE."""
    classes = sorted({name.split("/")[0] for name in names})
    labels = np.array([classes.index(name.split("/")[0]) for name in names], dtype=np.uint8)
    groups = groups_of(np.stack([miniature(data) for data in encoded]))
    arrays: dict[str, np.ndarray] = {"classes": np.array(classes)}
    for part, indices in split(names, labels, groups).items():
        own = [encoded[index] for index in indices]
        arrays[f"{part}_images"] = np.frombuffer(b"".join(own), dtype=np.uint8)
        arrays[f"{part}_ends"] = np.cumsum([len(data) for data in own]).astype(np.int32)
        arrays[f"{part}_labels"] = labels[indices]
        arrays[f"{part}_names"] = np.frombuffer("\n".join(names[index] for index in indices).encode(), dtype=np.uint8)
    np.savez_compressed(out, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    paths = sorted(chosen.folder.glob("*/*/*.jpg"))
    write(chosen.out, [path.relative_to(path.parents[1]).as_posix() for path in paths], [encode(one) for one in paths])
    print(f"{chosen.out}: {chosen.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
