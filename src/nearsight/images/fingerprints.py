"""What tells that data is the same: an outline (names, labels, sizes) and a checksum of every byte, in one line.

`OUTLINE:CONTENT`, each a sha256 in hexadecimal digits. Fingerprints recorded before contents were part of them are
outlines alone; they are held against the outline, and the record of a run gets its content when the run goes on.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

CHECKSUM = 16
"""Bytes of the checksum of one image: the first of its sha256, which processors have instructions for."""


def checksum(content: Any) -> bytes:
    """Of the bytes of one image, as it is stored."""
    return hashlib.sha256(content).digest()[:CHECKSUM]


def join_fingerprint(outline: str, checksums: np.ndarray) -> str:
    """The fingerprint of a set: what it says of its images, and the checksums [N, CHECKSUM] of all of them in order."""
    return f"{outline}:{hashlib.sha256(checksums.tobytes()).hexdigest()}"


def same_data(known: Any, now: Any) -> bool:
    """Whether two fingerprints agree, as far as both reach."""
    if not (isinstance(known, str) and isinstance(now, str)):
        return bool(known == now)
    (known_outline, _, known_content), (outline, _, content) = known.partition(":"), now.partition(":")
    return known_outline == outline and (not known_content or not content or known_content == content)
