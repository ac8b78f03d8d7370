"""What an encoded image says about itself, read before a decoder is let at it: what would keep one busy is refused."""

from __future__ import annotations

import re
import struct
import zlib

from nearsight.untrusted.limits import JPEG_EXIF_SEGMENTS, JPEG_SCANS, JPEG_SEGMENTS, PNG_CHUNKS, PNG_PROFILES

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG_SIGNATURE = b"\xff\xd8\xff"
_START_OF_SCAN, _END_OF_IMAGE, _EXIF = 0xDA, 0xD9, 0xE1
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length: TEM, RST0 to RST7, SOI
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # in entropy-coded data, which has 0xff 0x00 for 0xff


def header_refusal(data: bytes) -> str:
    """Why these bytes are no image that should be decoded; empty where nothing speaks against it."""
    if data.startswith(_PNG_SIGNATURE):
        return _png_refusal(data)
    if data.startswith(_JPEG_SIGNATURE):
        return _jpeg_refusal(data)
    return ""


def _jpeg_refusal(data: bytes) -> str:
    """Scans that each cost a pass over the whole image, and segments of which decoders make copies of copies.

    A damaged file is left to the decoder, which reads no more scans than are counted here.
    """
    position, segments, exif, scans = 2, 0, 0, 0
    few = data.count(b"\xff\xda") <= JPEG_SCANS  # then the first scan's header is the last that matters
    while position + 4 <= len(data):
        if data[position] != 0xFF:  # decoders look for the next marker
            position = data.find(b"\xff", position)
            if position < 0:
                break
            continue
        marker = data[position + 1]
        if marker == 0xFF or marker == 0x00 or marker in _ALONE:
            position += 1 if marker == 0xFF else 2
            continue
        if marker == _END_OF_IMAGE:
            break
        (length,) = struct.unpack_from(">H", data, position + 2)
        segments += scans == 0
        exif += marker == _EXIF and data[position + 4 : position + 8] == b"Exif"
        if segments > JPEG_SEGMENTS or exif > JPEG_EXIF_SEGMENTS:
            what, limit = ("segments", JPEG_SEGMENTS) if segments > JPEG_SEGMENTS else ("Exif segments", exif - 1)
            return f"JPEG with more than {limit} {what}"
        position += 2 + length
        if marker == _START_OF_SCAN:
            scans += 1
            if few:
                break
            if scans > JPEG_SCANS:
                return f"JPEG with more than {JPEG_SCANS} scans"
            found = _NEXT_MARKER.search(data, position)
            if found is None:
                break
            position = found.start()
    return ""


def _png_refusal(data: bytes) -> str:
    """Wrong checksums, which Pillow passes over for the pixel data, and parts that are many or unpack to much."""
    position, view = len(_PNG_SIGNATURE), memoryview(data)
    chunks = profiles = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        kind, end = bytes(view[position + 4 : position + 8]), position + 12 + length
        chunks += 1
        profiles += kind == b"iCCP"
        if chunks > PNG_CHUNKS:
            return f"PNG with more than {PNG_CHUNKS} chunks"
        if profiles > PNG_PROFILES:
            return f"PNG with more than {PNG_PROFILES} colour profile"
        if end > len(data):
            break
        (stored,) = struct.unpack_from(">I", data, end - 4)
        critical = not kind[0] & 0x20
        if critical and zlib.crc32(view[position + 4 : end - 4]) != stored:
            return f"wrong checksum in PNG chunk {kind.decode('latin-1')}"
        if kind == b"IEND":
            return ""
        position = end
    return "PNG file is cut short"
