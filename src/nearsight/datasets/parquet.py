"""Parquet files with a column of encoded images and a column of labels (the layout of the Hugging Face hub)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearsight.datasets.labelled import EncodedImages, LabelledImages
from nearsight.datasets.splitting import group_by_split, read_labels
from nearsight.text import printable

_IMAGE_COLUMNS = ("image", "img", "images", "jpg", "png", "webp", "bytes", "image_bytes", "pixel_values")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls", "target", "category")


def _import_pyarrow() -> Any:
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
            file = parquet.ParquetFile(path)
            columns = file.schema_arrow.names
            image_column = _pick(columns, _IMAGE_COLUMNS, "images")
            label_column = _pick(columns, _LABEL_COLUMNS, "labels")
            classes = classes or _class_names(file.schema_arrow, label_column)
            for batch in file.iter_batches(batch_size=256, columns=[image_column, label_column]):
                for value in batch.column(image_column).to_pylist():
                    data = value.get("bytes") if isinstance(value, dict) else value
                    if data is not None and not isinstance(data, bytes):
                        raise ValueError(f"column {image_column} holds {type(data).__name__}, not image bytes")
                    chunks.append(data or b"")
                labels += batch.column(label_column).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's own errors are of these types too
            raise ValueError(f"{where}: {printable(str(error))}") from None
        names += [f"{path.name} row {row}" for row in range(len(labels) - len(names))]
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)
    return np.frombuffer(b"".join(chunks), dtype=np.uint8), ends, labels, names, classes


def open_parquet(paths: Sequence[Path], root: Path) -> dict[str, LabelledImages]:
    """The splits that the file names speak of. The encoded images are held in memory; workers share it."""
    parquet = _import_pyarrow()
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
