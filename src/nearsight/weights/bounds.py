"""What a file of weights may claim: nothing in it is believed before it is compared with the file's own size."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from nearsight.text import printable
from nearsight.untrusted.files import check_plain_file
from nearsight.untrusted.limits import PICKLE_BYTES, WEIGHT_BYTES, WEIGHT_TENSORS
from nearsight.untrusted.zip_files import check_directory


def check_file(path: Path) -> None:
    """Refuse a file that is none, that is too large, or, as torch saves it, a .zip of more than it holds.

    torch stores what it saves without compression.
    """
    size = check_plain_file(path, WEIGHT_BYTES)
    with open(path, "rb") as file:
        packed = file.read(4) == b"PK\x03\x04"
    if not packed:
        return
    check_directory(path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if len(entries) > WEIGHT_TENSORS:
        raise ValueError(f"it has {len(entries):,} entries; at most {WEIGHT_TENSORS:,} are read")
    for entry in entries:
        shown = printable(entry.filename)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{shown} in it is compressed, which torch never does")
        if entry.filename.endswith(".pkl") and entry.file_size > PICKLE_BYTES:
            raise ValueError(f"{shown} in it has {entry.file_size:,} bytes; at most {PICKLE_BYTES:,} are read")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its entries claim more bytes than it has")


def check_tensors(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse what is no plain tensor with memory of its own: a shape alone can stand for any number of terabytes."""
    for number, (name, tensor) in enumerate(tensors, 1):
        if number > WEIGHT_TENSORS:
            raise ValueError(f"there are more than {WEIGHT_TENSORS:,} tensors")
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{printable(str(name))} is not a plain tensor with a number for every place")
