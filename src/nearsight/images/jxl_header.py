"""The size of a JPEG XL picture from its header: its plug-in of Pillow decodes a file when it opens it.

ISO 18181-1: `SizeHeader` and the start of `ImageMetadata`; ISO 18181-2: the container's boxes.
"""

from __future__ import annotations

import struct

_CODESTREAM, _CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"
_SIDE_BITS = (9, 13, 18, 30)
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))  # of width to height
_SIDEWAYS = range(5, 9)


def is_jxl(data: bytes) -> bool:
    return data.startswith((_CODESTREAM, _CONTAINER))


def jxl_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) of the upright picture; None where the first bytes do not say it."""
    header = data if data.startswith(_CODESTREAM) else _first_codestream(data)
    if not header.startswith(_CODESTREAM) or len(header) < 16:
        return None
    bits = _Bits(int.from_bytes(header[2:16], "little"))
    small = bits.take(1)
    height = _side(bits, small)
    ratio = bits.take(3)
    width = height * _RATIOS[ratio - 1][0] // _RATIOS[ratio - 1][1] if ratio else _side(bits, small)
    plain = bits.take(1) or not bits.take(1)
    orientation = 1 if plain else 1 + bits.take(3)
    return (width, height) if orientation in _SIDEWAYS else (height, width)


class _Bits:
    """Numbers of some bits each, the lowest bit first."""

    def __init__(self, value: int) -> None:
        self._value = value

    def take(self, count: int) -> int:
        found = self._value & (1 << count) - 1
        self._value >>= count
        return found


def _side(bits: _Bits, small: int) -> int:
    return 8 * (1 + bits.take(5)) if small else 1 + bits.take(_SIDE_BITS[bits.take(2)])


def _first_codestream(data: bytes) -> bytes:
    """What the container's first box with a codestream, or with the beginning of one, holds."""
    position = 0
    while position + 16 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        start = position + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start += 8
        if kind in (b"jxlc", b"jxlp"):
            return data[start + (4 if kind == b"jxlp" else 0) :][:16]
        if length < start - position:  # 0: a box up to the end of the file
            return b""
        position += length
    return b""
