"""Tables and lists that name pictures and their labels: CSV, TSV, parquet, and text files of `path label` lines.

Pictures lie at or below the table's folder. A name may be a path from there, a path from elsewhere whose end is found
there, or a file's name with or without its extension.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nearsight.datasets.labelled import FileImages, LabelledImages
from nearsight.datasets.splitting import SPLIT_WORDS, encode_labels, split_word
from nearsight.datasets.tables import LABEL_COLUMNS, read_text_columns
from nearsight.images.files import PassedOver, pictures_below
from nearsight.images.formats import IMAGE_SUFFIXES, NO_PICTURES
from nearsight.text import printable
from nearsight.untrusted.files import read_text
from nearsight.untrusted.limits import LIST_BYTES

TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
_NAME_COLUMNS = (
    "file_name", "filename", "file", "filepath", "file_path", "path", "image_path", "img_path", "image_name", "image",
    "img", "images", "image_id", "name", "id",
)  # fmt: skip
_SPLIT_COLUMNS = ("split", "set", "subset", "partition")
_BITS = {"0": False, "0.0": False, "1": True, "1.0": True}
_ONE_HOT = "column with a 1"
_SEVERAL = "several labels for one picture are not learned: leave one for each"
_TRIED = 20  # rows of a table whose pictures are looked for, to know its column of names


class Listing(NamedTuple):
    """A table as it is read: its columns, and its rows as text by column."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, str]]

    def name_column(self, places: Places) -> str:
        """The column that names pictures which are there, first one of a customary name; empty where there is none."""
        lower = {column.strip().lower(): column for column in reversed(self.columns)}
        known = [lower[name] for name in _NAME_COLUMNS if name in lower]
        tried = (column for column in dict.fromkeys([*known, *self.columns]))
        return next((one for one in tried if any(places.find(row[one]) for row in self.rows[:_TRIED])), "")

    def label_column(self, name_column: str, stated: str) -> str:
        """The column that is stated, one of a customary name, or the only one that is neither name nor split."""
        if stated and stated not in self.columns:
            raise ValueError(
                f"{printable(str(self.path))} has no column {stated!r}, but {printable(', '.join(self.columns))}"
            )
        others = [column for column in self.columns if column not in (name_column, self.split_column)]
        known = [column for label in LABEL_COLUMNS for column in others if column.strip().lower() == label]
        found = stated or next(iter(known), others[0] if len(others) == 1 else "")
        if not found and len(others) > 1 and all(row[column] in _BITS for row in self.rows for column in others):
            return self._one_hot(others)
        return found

    def _one_hot(self, columns: Sequence[str]) -> str:
        """A new column of the names of those columns that have a 1, where each row has one such."""
        for row in self.rows:
            classes = [column for column in columns if _BITS[row[column]]]
            if len(classes) > 1:
                both = printable(" and ".join(classes[:2]))
                raise ValueError(f"{printable(str(self.path))}: a picture is {both} at once; {_SEVERAL}")
            row[_ONE_HOT] = classes[0] if classes else ""
        return _ONE_HOT

    @property
    def split_column(self) -> str:
        return next((column for column in self.columns if column.strip().lower() in _SPLIT_COLUMNS), "")


def read_listing(path: Path) -> Listing:
    """The rows of a table, or the lines of a list, as text."""
    if path.suffix.lower() == ".parquet":
        return Listing(path, *read_text_columns(path))
    text = read_text(path, LIST_BYTES)
    if path.suffix.lower() == ".txt":
        pairs = [_path_and_label(line) for line in text.splitlines() if line.strip()]
        return Listing(path, ("path", "label"), [{"path": name, "label": label} for name, label in pairs])
    head = text.split("\n", 1)[0]
    delimiter = max("\t;,", key=head.count) if path.suffix.lower() == ".csv" else "\t"
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter, restval="")
    try:
        rows = [{name: (value or "").strip() for name, value in row.items() if name is not None} for row in reader]
    except csv.Error as error:
        raise ValueError(f"{printable(str(path))}, line {reader.line_num}: {error}") from None
    return Listing(path, tuple(reader.fieldnames or ()), rows)


def _path_and_label(line: str) -> tuple[str, str]:
    """`path label`, where the path may have blanks; or a path alone, whose class is the folder that the file is in."""
    line = line.strip()
    parts = re.split(r"[\s,;]+", line)
    if len(parts) > 1 and not line.lower().endswith(IMAGE_SUFFIXES):
        label = parts[-1]
        return re.sub(r"[\s,;]+$", "", line[: -len(label)]), label
    return line, PurePosixPath(line.replace("\\", "/")).parent.name


def listings_of(folder: Path, label_column: str, passed: PassedOver) -> dict[str, Listing]:
    """Tables in a folder that name pictures below it and their labels, by split; empty where there are none."""
    found: dict[str, Listing] = {}
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()]
    places: Places | None = None
    for path in paths:
        split = split_word(path.stem)
        if path.suffix.lower() == ".txt" and not split:
            continue
        places = places or Places(folder, PassedOver())
        try:
            listing = read_listing(path)
            named = listing.name_column(places)
            labelled = named and listing.label_column(named, label_column)
        except ValueError as error:
            if label_column:
                raise
            passed.add(path.name, f"no table of labels ({error})")
            continue
        if not labelled:
            if named and len(listing.columns) > 1:
                passed.add(path.name, "it names pictures, but several columns may be their labels: see --label-column")
            continue
        other = found.setdefault(split or "train", listing)
        if other is not listing:
            raise ValueError(
                f"{printable(str(folder))}: {printable(other.path.name)} and {printable(path.name)} both list the "
                f"{split or 'train'} pictures; give one of the files, or name them train.csv, val.csv and test.csv"
            )
    return found if "train" in found else {}


class Places:
    """The pictures below a folder, found by what tables call them."""

    def __init__(self, root: Path, passed: PassedOver) -> None:
        own = PassedOver()
        self.names = pictures_below(root, own)
        for suffix in (*TABLE_SUFFIXES, ".parquet"):
            own.counts.pop(f"{suffix} ({NO_PICTURES})", None)  # they are read, or of no concern beside one that is
        passed.merge(own)
        self._known = set(self.names)
        self._by_base: dict[str, list[str]] = {}
        for name in self.names:
            base = PurePosixPath(name).name
            for called in {base, base.rpartition(".")[0]}:
                self._by_base.setdefault(called, []).append(name)

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def find(self, stated: str) -> str:
        """The picture, by its path below the folder; empty where there is none."""
        name = plain_path(stated)
        if name in self._known:
            return name
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        candidates = self._by_base.get(parts[-1], []) if parts else []
        if len(candidates) < 2:
            return candidates[0] if candidates else ""
        shared = sorted((_shared_tail(parts, one), one) for one in candidates)
        if shared[-1][0] == shared[-2][0]:
            raise ValueError(
                f"{printable(stated)} may be {printable(shared[-1][1])} or {printable(shared[-2][1])}; "
                "write the path from the table's folder"
            )
        return shared[-1][1]


def plain_path(stated: str) -> str:
    return stated.strip().replace("\\", "/").removeprefix("./")


def _shared_tail(parts: Sequence[str], name: str) -> int:
    """How many folders before the file's name are the same."""
    pairs = zip(reversed(parts[:-1]), reversed(PurePosixPath(name).parts[:-1]), strict=False)
    return next(
        (count for count, (one, other) in enumerate(pairs) if one != other), min(len(parts) - 1, name.count("/"))
    )


class ListedRows(NamedTuple):
    """Rows whose picture is there, of one split: names below the table's folder, and the rows."""

    names: list[str]
    rows: list[dict[str, str]]


def rows_by_split(
    root: Path, listings: Mapping[str, Listing], passed: PassedOver, label_column: str
) -> tuple[dict[str, ListedRows], str]:
    """The rows of tables by split, that of a column or else of the table; and the column of the labels."""
    places = Places(root, passed)
    found: dict[str, ListedRows] = {}
    label = ""
    meant: dict[str, str] = {}  # a picture, and the path that stands for it; another path means another picture
    for listing in listings.values():
        named = listing.name_column(places)
        meant.update((path, path) for row in listing.rows if (path := plain_path(row.get(named, ""))) in places)
    for own, listing in listings.items():
        where = printable(str(listing.path))
        named = listing.name_column(places)
        if not named:
            columns = printable(", ".join(listing.columns)) or "none"
            raise ValueError(
                f"{where}: no column names pictures in {printable(str(root))}; it has the columns {columns}"
            )
        label = label or listing.label_column(named, label_column)
        for row in listing.rows:
            name = places.find(row[named])
            path = plain_path(row[named])
            path = name if path.endswith(f"/{name}") else path  # as from the root of another machine's disk
            if not name or meant.setdefault(name, path) != path:
                passed.add(row[named], f"listed in {printable(listing.path.name)}, but not there")
                continue
            word = row[listing.split_column].lower() if listing.split_column else own
            if word not in SPLIT_WORDS:
                raise ValueError(
                    f"{where}: {printable(name)} has the split {printable(repr(word))}, not train, val or test"
                )
            names, rows = found.setdefault(SPLIT_WORDS[word], ListedRows([], []))
            names.append(name)
            rows.append(row)
    listed = {name for own_rows in found.values() for name in own_rows.names}
    for name in places.names:
        if name not in listed:
            passed.add(name, "pictures that the table does not list")
    return {split: found[split] for split in ("train", "val", "test") if split in found}, label


def open_listed(
    root: Path, listings: Mapping[str, Listing], passed: PassedOver, label_column: str = ""
) -> dict[str, LabelledImages]:
    """Pictures with one label each. Every label is a class; numbers are in their order."""
    found, column = rows_by_split(root, listings, passed, label_column)
    if not column:
        columns = printable(", ".join(next(iter(listings.values())).columns))
        raise ValueError(f"several columns may be the labels ({columns}); choose by --label-column")
    parts: dict[str, dict[str, str]] = {}
    for split, (names, rows) in found.items():
        labels = parts[split] = {}
        for name, row in zip(names, rows, strict=True):
            label = row.get(column, "")
            if parts_of := [part for part in re.split(r"[|;]", label) if part.strip()][1:]:
                raise ValueError(
                    f"{printable(name)} is {printable(repr(label))}, {1 + len(parts_of)} labels; {_SEVERAL}"
                )
            if not label:
                passed.add(name, f"without a {printable(column)}")
            elif labels.setdefault(name, label) != label:
                raise ValueError(
                    f"{printable(name)} has two labels, {printable(labels[name])} and {printable(label)}; remove a row"
                )
    classes = _in_order({*parts.get("train", {}).values()})
    if not classes:
        raise ValueError(f"{printable(str(root))}: no picture to train on has a {printable(column)}")
    return {split: FileImages(root, own, *encode_labels(own.values(), classes)) for split, own in parts.items()}


def _in_order(labels: set[str]) -> tuple[str, ...]:
    numbers = all(re.fullmatch(r"\d{1,9}", label) for label in labels)
    return tuple(sorted(labels, key=int) if numbers else sorted(labels))
