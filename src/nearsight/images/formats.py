"""Formats of pictures: the names their files end in, and which of them can be read here.

Only plain raster formats: Pillow also opens formats that start other programs (EPS) or fetch other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import IO

from PIL import Image, UnidentifiedImageError, features


@dataclass(frozen=True)
class Format:
    """A format under Pillow's name for it."""

    name: str
    suffixes: tuple[str, ...]
    plugin: str = ""
    """The module that reads it, where Pillow itself does not."""

    @property
    def lacks(self) -> str:
        """What has to be done before it can be read; empty where it can be."""
        if self.plugin and find_spec(self.plugin) is None:
            return 'pip install "nearsight[formats]"'
        if self.name == "AVIF" and not features.check("avif"):
            return "install a Pillow that was built with AVIF"
        return ""


FORMATS = (
    Format("JPEG", (".jpg", ".jpeg", ".jfif")),
    Format("PNG", (".png",)),
    Format("WEBP", (".webp",)),
    Format("BMP", (".bmp",)),
    Format("GIF", (".gif",)),
    Format("TIFF", (".tif", ".tiff")),
    Format("PPM", (".ppm", ".pgm")),
    Format("AVIF", (".avif",)),
    Format("HEIF", (".heic", ".heif", ".hif"), "pi_heif"),
    Format("JXL", (".jxl",), "pillow_jxl"),
)
IMAGE_SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes)
"""Of all formats that can be read where their plug-ins are installed."""
_CAMERA_RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2")
_NOT_PLAIN = (".eps", ".pdf", ".psd", ".svg", ".xcf")
_OTHERS = (
    ".csv", ".db", ".html", ".ini", ".json", ".log", ".mat", ".md", ".names", ".npy", ".npz", ".parquet", ".py", ".tsv",
    ".txt", ".xml", ".yaml", ".yml",
)  # fmt: skip
NO_PICTURES = "no pictures"


def readable_suffixes() -> tuple[str, ...]:
    """What names of files that can be read here end in, in lower case."""
    return tuple(suffix for format in FORMATS if not format.lacks for suffix in format.suffixes)


def why_not_read(suffix: str) -> str:
    """Why files whose names end so, in lower case, are not read, and what to do about it."""
    lacks = next((format.lacks for format in FORMATS if suffix in format.suffixes), "")
    if lacks:
        return f"to read them, {lacks}"
    if suffix in _CAMERA_RAW:
        return "camera raw: export them as JPEG or PNG"
    if suffix in _NOT_PLAIN:
        return "not made of pixels: export them as PNG"
    if suffix in _OTHERS:
        return NO_PICTURES
    return "not the extension of a picture that is read"


def why_unknown(name: str) -> str:
    """Why a file is not known for a picture by its content."""
    lacks = next((format.lacks for format in FORMATS if name.lower().endswith(format.suffixes)), "")
    return (
        f"not an image of a known format; to read files that end so, {lacks}"
        if lacks
        else ("not an image of a known format")
    )


def open_picture(stream: IO[bytes]) -> Image.Image:
    """An image of one of the formats, its header read. Plug-ins are loaded when Pillow does not know a file."""
    built_in = tuple(format.name for format in FORMATS if not format.plugin)
    try:
        return Image.open(stream, formats=built_in)
    except UnidentifiedImageError:
        names = _load_plugins()
        if not names:
            raise
    stream.seek(0)
    return Image.open(stream, formats=names)


def _load_plugins() -> tuple[str, ...]:
    """Names of the formats whose plug-ins are installed, which Pillow knows from now on."""
    there = [format for format in FORMATS if format.plugin and not format.lacks]
    for format in there:
        plugin = import_module(format.plugin)
        if format.name == "HEIF":
            plugin.register_heif_opener()
    return tuple(format.name for format in there)
