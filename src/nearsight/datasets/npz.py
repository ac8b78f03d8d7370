"""NumPy .npz files: arrays `images` and `labels`, or `train_images`, `train_labels`, `test_images`, …"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from nearsight.datasets.labelled import ArrayImages, LabelledImages
from nearsight.datasets.splitting import as_words, read_labels
from nearsight.text import printable

_MAX_BYTES = 64 * 2**30
_PREFIXES = {"train": ("train_", ""), "val": ("val_", "validation_", "valid_"), "test": ("test_",)}
_CLASS_KEYS = ("classes", "class_names", "label_names")


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_BYTES:
                raise ValueError(f"unpacks to more than {_MAX_BYTES // 2**30} GiB")
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = "object arrays are refused" if "allow_pickle" in str(error) else str(error)
        raise ValueError(f"{printable(str(path))}: not a readable .npz of plain arrays: {printable(reason)}") from None


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
    arrays = _read_arrays(path)
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
        have = printable(", ".join(sorted(arrays)) or "nothing")
        raise ValueError(
            f"{printable(str(path))}: expected arrays images and labels, or train_images and so on; has {have}"
        )
    try:
        labels, known = read_labels({split: stored for split, (_, stored) in found.items()}, classes)
    except ValueError as error:
        raise ValueError(f"{printable(path.name)}: {error}") from None
    return {
        split: ArrayImages(pixels, labels[split], known, _row_label(split, found))
        for split, (pixels, _) in found.items()
    }


def _row_label(split: str, found: dict) -> str:
    return "row" if len(found) == 1 else f"{split} row"
