"""WebDataset shards (.tar) with random access: an index of offsets, so that order is exact and nothing is unpacked.

Members of one sample share the name before the first dot: `0001.jpg` with `0001.cls` (a number or a class name) or
`0001.json` (an object with "label" or "class"). Nothing else is decoded, ever.
"""

from __future__ import annotations

import json
import re
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from nearsight.datasets.archive import opened_tar
from nearsight.datasets.content import piece_checksums
from nearsight.datasets.labelled import LabelledImages, LabelledSet, digest
from nearsight.datasets.splitting import encode_labels, group_by_split
from nearsight.images.decode import decode_image
from nearsight.images.files import PassedOver, refusal
from nearsight.images.formats import NO_PICTURES, readable_suffixes
from nearsight.images.imageset import BadImage
from nearsight.text import printable
from nearsight.untrusted.limits import ENTRIES, IMAGE_BYTES, LABEL_BYTES

_LABEL_KEYS = ("label", "class", "cls", "target")


@dataclass
class _Sample:
    offset: int = -1
    size: int = 0
    label: str | None = None


@dataclass
class ShardIndex:
    """Where every image of some shards lies, and what was passed over."""

    paths: list[Path] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    shard: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    passed: PassedOver = field(default_factory=PassedOver)
    """Members that are not read."""


def expand_braces(pattern: str) -> list[str]:
    """'a-{000..002}.tar' and 'a-{x,y}.tar' to the names they stand for."""
    choices = []
    for piece in re.split(r"(\{[^{}]*\})", pattern):
        span = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", piece)
        if span:
            first, last = span.groups()
            if int(last) < int(first) or int(last) - int(first) >= 1_000_000:
                raise ValueError(f"{printable(pattern)}: {piece} is not a range of at most a million")
            choices.append([str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)])
        elif piece.startswith("{"):
            choices.append(piece[1:-1].split(","))
        else:
            choices.append([piece])
    return ["".join(parts) for parts in product(*choices)]


def _label_of(kind: str, data: bytes, where: str) -> str | None:
    try:
        text = data.decode("utf-8").strip()
        if kind == "cls":
            return text or None
        value = json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise ValueError(f"{where}: not valid {'UTF-8 text' if kind == 'cls' else 'JSON'}") from None
    if not isinstance(value, dict):
        return None
    found = [value[key] for key in _LABEL_KEYS if isinstance(value.get(key), int | str)]
    return str(found[0]) if found else None


def _index_shard(path: Path, index: ShardIndex) -> None:
    samples: dict[str, _Sample] = {}
    shard, entries = len(index.paths), 0
    index.paths.append(path)
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # the list tarfile keeps would grow with every member
                _index_member(tar, member, samples, index, printable(path.name))
                if (entries := entries + 1) > ENTRIES:
                    raise ValueError(f"{printable(str(path))}: more than {ENTRIES} members")
    except (tarfile.TarError, EOFError, struct.error) as error:
        hint = "; shards must be plain .tar, not compressed" if path.stat().st_size else ": empty file"
        raise ValueError(f"{printable(str(path))}: {printable(str(error))}{hint}") from None
    except OSError as error:
        raise ValueError(f"{printable(str(path))}: {error.strerror or error}") from None
    total = path.stat().st_size
    for key, sample in samples.items():
        if sample.offset < 0:
            index.passed.add(key, "labels without a picture")
            continue
        if sample.label is None:
            raise ValueError(
                f"{printable(path.name)}: {printable(key)} has no label; expected {printable(key)}.cls or .json"
            )
        if sample.offset + sample.size > total:
            raise ValueError(f"{printable(path.name)}: the shard is cut short at {printable(key)}")
        index.names.append(f"{path.name}/{key}")
        index.labels.append(sample.label)
        index.shard.append(shard)
        index.offset.append(sample.offset)
        index.size.append(sample.size)


def _index_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, samples: dict[str, _Sample], index: ShardIndex, where: str
) -> None:
    if member.isdir():
        return
    name = member.name.removeprefix("./")
    folder, _, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    kind, readable = extension.lower(), readable_suffixes()
    if not member.isfile() or member.issparse() or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{where}: refused member {printable(member.name)!r}: a link, device or path out of the shard")
    if kind not in ("cls", "json") and f".{kind}" not in readable:
        index.passed.add(name, refusal(name, readable) or f".{printable(kind)} ({NO_PICTURES} with labels)")
        return
    key = f"{folder}/{stem}" if folder else stem
    sample = samples.setdefault(key, _Sample())
    if kind not in ("cls", "json"):
        if sample.offset >= 0:
            raise ValueError(f"{where}: two images under the key {printable(key)!r}")
        sample.offset, sample.size = member.offset_data, member.size
        return
    if member.size > LABEL_BYTES:
        raise ValueError(f"{where}: {printable(name)} is larger than {LABEL_BYTES} bytes")
    content = tar.extractfile(member)
    label = _label_of(kind, content.read() if content else b"", f"{where}: {printable(name)}")
    if sample.label is None or kind == "cls":  # .cls speaks of the label alone and wins over .json
        sample.label = label if label is not None else sample.label


class ShardImages(LabelledSet):
    """The images of indexed shards."""

    def __init__(self, index: ShardIndex, labels: np.ndarray, classes: Sequence[str]) -> None:
        super().__init__(index.names, labels, classes)
        self._paths = index.paths
        self._shard, self._offset, self._size = (
            np.asarray(column, dtype=np.int64) for column in (index.shard, index.offset, index.size)
        )

    def read(self, index: int) -> np.ndarray:
        try:
            data = self._stored(index)
        except OSError as error:
            raise BadImage(self.names[index], error.strerror or type(error).__name__) from None
        except ValueError as error:
            raise BadImage(self.names[index], str(error)) from None
        return decode_image(data, self.names[index])

    def _stored(self, index: int) -> bytes:
        size = int(self._size[index])
        if size > IMAGE_BYTES:
            raise ValueError(f"larger than {IMAGE_BYTES} bytes")
        with open(self._paths[self._shard[index]], "rb") as shard:
            shard.seek(int(self._offset[index]))
            return shard.read(size)

    def outline(self) -> str:
        return digest(self.names, self.labels, self.classes, self._size)

    def checksums(self, indices: np.ndarray) -> np.ndarray:
        paths = [str(path) for path in self._paths]
        columns = zip(self._shard[indices], self._offset[indices], self._size[indices], strict=True)
        pieces = [(paths[shard], int(offset), int(size)) for shard, offset, size in columns]
        return piece_checksums(self._paths[0].parent, pieces, lambda number: self._stored(int(indices[number])))


def looks_like_shard(path: Path) -> bool:
    """A tar whose first files include a .cls or .json member; a tar of an image folder has none."""
    with opened_tar(path) as tar:
        for _ in range(64):
            member = tar.next()
            if member is None:
                return False
            if member.isfile() and member.name.lower().endswith((".cls", ".json")):
                return True
    return False


def open_shards(paths: Sequence[Path], root: Path, passed: PassedOver) -> dict[str, LabelledImages]:
    """The splits that the shards' names speak of, all of it train where they do not; other members are counted."""
    indices: dict[str, ShardIndex] = {}
    for split, members in group_by_split(paths, root).items():
        indices[split] = ShardIndex()
        for path in members:
            _index_shard(path, indices[split])
    if not any(index.names for index in indices.values()):
        raise ValueError(f"{printable(str(paths[0]))}: no images with labels in {len(paths)} shards")
    classes = _shard_classes(indices)
    parts: dict[str, LabelledImages] = {}
    for split, index in indices.items():
        labels, classes = encode_labels(index.labels, classes)
        parts[split] = ShardImages(index, labels, classes)
        passed.merge(index.passed)
    return parts


def _shard_classes(indices: dict[str, ShardIndex]) -> tuple[str, ...] | None:
    """Numbers are class positions, whatever is missing between them; words are sorted by encode_labels."""
    values = {label for index in indices.values() for label in index.labels}
    if not all(re.fullmatch(r"\d{1,6}", value) for value in values):
        return None
    return tuple(str(label) for label in range(max(map(int, values)) + 1))
