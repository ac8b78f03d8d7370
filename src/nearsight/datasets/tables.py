"""Images and labels as arrays or columns of a file: NumPy's .npz and parquet.

.npz: arrays `images` and `labels`, or `train_images`, `train_labels`, `test_images`, …
parquet: a column of encoded images and a column of labels (the layout of the Hugging Face hub).
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearsight.datasets.labelled import ArrayImages, EncodedImages, LabelledImages
from nearsight.datasets.splitting import encode_labels, group_by_split
from nearsight.text import printable
from nearsight.untrusted.files import check_plain_file
from nearsight.untrusted.limits import (
    ENTRIES,
    ROW_BYTES,
    ROWS_AT_ONCE,
    TABLE_FREE,
    UNPACKED_BYTES,
    UNPACKED_RATIO,
)
from nearsight.untrusted.zip_files import bounded_entries, check_directory

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_PREFIXES = {"train": ("train_", ""), "val": ("val_", "validation_", "valid_"), "test": ("test_",)}
_PARTS = ("images", "labels")
_CLASS_KEYS = ("classes", "class_names", "label_names")
_ARRAYS = (*_CLASS_KEYS, *(f"{prefix}{part}" for own in _PREFIXES.values() for prefix in own for part in _PARTS))
_IMAGE_COLUMNS = ("image", "img", "images", "jpg", "png", "webp", "bytes", "image_bytes", "pixel_values")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls", "target", "category")
_MOST_CLASSES = 30_000  # of numbered labels without as many images


def _read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays that are images, labels or classes, by name; and the names of all, of which no other is unpacked."""
    try:
        check_plain_file(path, UNPACKED_BYTES)
        check_directory(path)
        with zipfile.ZipFile(path) as archive:
            entries = bounded_entries(path, archive)
            names = {entry.filename.removesuffix(".npy"): entry for entry in entries}
            return {key: _read_array(archive, names[key]) for key in _ARRAYS if key in names}, sorted(names)
    # zipfile and NumPy's parser of headers raise nearly every type on damaged input.
    except Exception as error:
        reason = "it does not fit into memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__
        raise ValueError(
            f"{printable(str(path))}: not a readable .npz of plain arrays ({printable(reason)}); store images as "
            "uint8 and labels as numbers or strings"
        ) from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array whose header says what its entry holds: memory is taken as the header says."""
    shown = printable(entry.filename)
    with archive.open(entry) as stored:
        version = np.lib.format.read_magic(stored)
        if version not in _HEADERS:
            raise ValueError(f"{shown} has the format {version}")
        shape, _, kind = _HEADERS[version](stored)
        header = stored.tell()
    if kind.hasobject:
        raise ValueError(f"{shown}: Object arrays are not read")
    stated = math.prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or stated != entry.file_size - header:
        raise ValueError(f"{shown} states {stated:,} bytes and holds {entry.file_size - header:,}")
    with archive.open(entry) as stored:
        return np.lib.format.read_array(stored, allow_pickle=False)


def _pixels(array: np.ndarray, what: str) -> np.ndarray:
    """[N, H, W], [N, H, W, C] or [N, C, H, W] to uint8 [N, H, W, 3]."""
    if array.dtype != np.uint8:
        raise ValueError(f"{what}: images must be uint8 (0..255), got {array.dtype}")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[-1] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape[1:]:
        raise ValueError(f"{what}: expected shape [N, H, W], [N, H, W, 3] or [N, 3, H, W], got {list(array.shape)}")
    return np.broadcast_to(array, (*array.shape[:3], 3))  # grey is shown in three channels without a copy


def open_npz(path: Path) -> dict[str, LabelledImages]:
    arrays, names = _read_arrays(path)
    stored_classes = next((arrays[key] for key in _CLASS_KEYS if key in arrays), None)
    classes = None if stored_classes is None else as_words(stored_classes)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split, prefixes in _PREFIXES.items():
        for prefix in prefixes:
            if split not in found and f"{prefix}images" in arrays:
                if f"{prefix}labels" not in arrays:
                    raise ValueError(f"{printable(str(path))}: {prefix}images without {prefix}labels")
                what = f"{printable(path.name)}, {prefix}images"
                found[split] = _pixels(arrays[f"{prefix}images"], what), arrays[f"{prefix}labels"].reshape(-1)
    if "train" not in found:
        have = printable(", ".join(names[:20]) or "nothing")
        raise ValueError(
            f"{printable(str(path))}: expected arrays images and labels, or train_images and so on; has {have}"
        )
    try:
        labels, known = read_labels({split: stored for split, (_, stored) in found.items()}, classes)
    except ValueError as error:
        raise ValueError(f"{printable(path.name)}: {error}") from None
    return {
        split: ArrayImages(pixels, labels[split], known, "row" if len(found) == 1 else f"{split} row")
        for split, (pixels, _) in found.items()
    }


def import_pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError('parquet files need pyarrow: pip install "nearsight[parquet]"') from None
    return pyarrow.parquet


def _pick(columns: Sequence[str], known: tuple[str, ...], what: str) -> str:
    for name in known:
        if name in columns:
            return name
    raise ValueError(f"no column for the {what}; expected one of {', '.join(known)}; has {', '.join(columns)}")


def _class_names(schema: Any, label_column: str) -> tuple[str, ...] | None:
    """Class names that the `datasets` library writes into the schema."""
    raw = (schema.metadata or {}).get(b"huggingface")
    try:
        names = json.loads(raw)["info"]["features"][label_column]["names"] if raw else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _check_claims(metadata: Any, columns: set[str], budget: float) -> None:
    """What a parquet file says of its columns, before any of it is unpacked; rows without content count as well."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    parts = [group.column(place) for group in groups for place in range(group.num_columns)]
    own = [part for part in parts if part.path_in_schema.split(".")[0] in columns]
    unpacked = sum(max(part.total_uncompressed_size, part.total_compressed_size) for part in own)
    rows = max(metadata.num_rows, *(part.num_values for part in own), 0)
    if rows > ENTRIES or ROW_BYTES * rows > budget or unpacked > budget:
        raise ValueError(
            f"claims {rows:,} rows and {unpacked:,} bytes, more than its size stands for (at most {budget:,.0f} bytes, "
            f"{ROW_BYTES} for each row)"
        )


def _read_table(
    parquet: Any, paths: list[Path]
) -> tuple[np.ndarray, np.ndarray, list, list[str], tuple[str, ...] | None]:
    """(encoded images back to back, their ends, labels, row names, class names or None)."""
    chunks: list[bytes] = []
    labels: list = []
    names: list[str] = []
    classes = None
    for path in paths:
        where = printable(path.name)
        try:
            size = check_plain_file(path, UNPACKED_BYTES)
            budget = max(TABLE_FREE, UNPACKED_RATIO * size)
            file = parquet.ParquetFile(path)
            columns = file.schema_arrow.names
            image_column = _pick(columns, _IMAGE_COLUMNS, "images")
            label_column = _pick(columns, LABEL_COLUMNS, "labels")
            classes = classes or _class_names(file.schema_arrow, label_column)
            _check_claims(file.metadata, {image_column, label_column}, budget)
            # Of few rows at once: a dictionary lets every row hold the same large value.
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[image_column, label_column]):
                for value in batch.column(image_column).to_pylist():
                    data = value.get("bytes") if isinstance(value, dict) else value
                    if data is not None and not isinstance(data, bytes):
                        raise ValueError(f"column {image_column} holds {type(data).__name__}, not image bytes")
                    chunks.append(data or b"")
                    budget -= len(chunks[-1])
                if budget < 0:
                    raise ValueError(f"its images unpack to more than {UNPACKED_RATIO:g} times its {size:,} bytes")
                labels += batch.column(label_column).to_pylist()
        except Exception as error:  # pyarrow raises nearly every type on damaged input
            reason = "does not fit into memory" if isinstance(error, MemoryError) else str(error)
            raise ValueError(f"{where}: {printable(reason or type(error).__name__)}") from None
        names += [f"{path.name} row {row}" for row in range(len(labels) - len(names))]
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)
    return np.frombuffer(b"".join(chunks), dtype=np.uint8), ends, labels, names, classes


def names_pictures(path: Path) -> bool:
    """Whether a parquet file has text where others have encoded images."""
    parquet = import_pyarrow()
    try:
        check_plain_file(path, UNPACKED_BYTES)
        schema = parquet.read_schema(path)
    except Exception as error:  # pyarrow raises nearly every type on damaged input
        raise ValueError(f"{printable(str(path))}: {printable(str(error) or type(error).__name__)}") from None
    return not any("binary" in str(field.type) for field in schema)


def read_text_columns(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The columns of a parquet file, and its rows as text. Several words in one place are joined by `|`."""
    parquet = import_pyarrow()
    try:
        size = check_plain_file(path, UNPACKED_BYTES)
        budget = max(TABLE_FREE, UNPACKED_RATIO * size)
        file = parquet.ParquetFile(path)
        columns = tuple(file.schema_arrow.names)
        _check_claims(file.metadata, set(columns), budget)
        rows: list[dict[str, str]] = []
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            rows += [{name: _as_text(value) for name, value in row.items()} for row in batch.to_pylist()]
            budget -= sum(len(text) for row in rows[-len(batch) :] for text in row.values())
            if budget < 0:
                raise ValueError(f"it unpacks to more than {UNPACKED_RATIO:g} times its {size:,} bytes")
    except Exception as error:  # pyarrow raises nearly every type on damaged input
        raise ValueError(f"{printable(str(path))}: {printable(str(error) or type(error).__name__)}") from None
    return columns, rows


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)


def open_parquet(paths: Sequence[Path], root: Path) -> dict[str, LabelledImages]:
    """The splits that the file names speak of. The encoded images are held in memory; workers share it."""
    parquet = import_pyarrow()
    tables = {split: _read_table(parquet, members) for split, members in group_by_split(paths, root).items()}
    names = next((table[4] for table in tables.values() if table[4]), None)
    for split, (_, _, values, _, _) in tables.items():
        if not all(isinstance(value, int | str | bytes) for value in values):
            raise ValueError(f"{split}: labels must be integers or strings, and none may be missing")
    labels, classes = read_labels({split: np.asarray(table[2]) for split, table in tables.items()}, names)
    return {
        split: EncodedImages(buffer, ends, rows, labels[split], classes)
        for split, (buffer, ends, _, rows, _) in tables.items()
    }


def read_labels(
    stored: Mapping[str, np.ndarray], classes: Sequence[str] | None = None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Labels of each split, and the classes, from arrays of words or of whole numbers, which are class positions."""
    kinds = {split: array.dtype.kind for split, array in stored.items() if array.size}
    for split, kind in kinds.items():
        if kind not in "biuUS":
            raise ValueError(
                f"{split}: labels must be integers or strings, and none may be missing; got {stored[split].dtype}"
            )
    words = {split for split, kind in kinds.items() if kind in "US"}
    if not words:
        known = _numbered(stored) if classes is None else tuple(classes)
        return {split: array.astype(np.int64) for split, array in stored.items()}, known
    if words != set(kinds):
        raise ValueError(
            f"labels are words in {', '.join(sorted(words))} and numbers in {', '.join(sorted(set(kinds) - words))}; "
            "use one of the two in every split"
        )
    labels = {}
    for split, array in stored.items():
        labels[split], classes = encode_labels(as_words(array), classes)
    return labels, tuple(classes or ())


def _numbered(stored: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    highest = max(int(array.max(initial=0)) for array in stored.values())
    count = sum(len(array) for array in stored.values())
    if highest >= max(count, _MOST_CLASSES):  # a few images to measure on need not have every class
        raise ValueError(
            f"the largest label is {highest}, but there are only {count} images: labels count the classes from 0; "
            "renumber them, or store them as strings"
        )
    return tuple(str(label) for label in range(highest + 1))


def as_words(array: np.ndarray) -> list[str]:
    """An array's entries as strings; bytes are text."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "backslashreplace")
    return [str(word) for word in array.reshape(-1)]
