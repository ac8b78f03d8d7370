"""Bytes to pixels, for untrusted files: header first, full decode, one error for everything that is wrong."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from nearsight.images.formats import open_picture, why_unknown
from nearsight.images.headers import header_refusal
from nearsight.images.imageset import BadImage
from nearsight.images.jxl_header import is_jxl, jxl_size
from nearsight.untrusted.files import read_bytes
from nearsight.untrusted.limits import IMAGE_BYTES, IMAGE_PIXELS, IMAGE_SIDE

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width


@dataclass(frozen=True)
class Limits:
    """What is refused before decoding."""

    max_pixels: int = IMAGE_PIXELS
    max_side: int = IMAGE_SIDE
    max_bytes: int = IMAGE_BYTES


DEFAULT_LIMITS = Limits()
_filters_lock = threading.Lock()


@contextmanager
def _strict_warnings() -> Iterator[None]:
    """Pillow's warnings about size and missing data become errors; those about metadata are ignored.

    Warning filters belong to the process, hence the lock: threads must not restore them in each other's way.
    """
    with _filters_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("error", message=".*[Tt]runcated")
        yield


def read_image_file(path: Path, name: str, limits: Limits = DEFAULT_LIMITS) -> np.ndarray:
    """A file as uint8 [H, W, 3]; one that the file system refuses to read is a BadImage too."""
    try:
        data = read_bytes(path, limits.max_bytes)
    except OSError as error:
        raise BadImage(name, error.strerror or type(error).__name__) from None
    except ValueError as error:
        raise BadImage(name, str(error)) from None
    return decode_image(data, name, limits)


def read_image_size(path: Path) -> tuple[int, int] | None:
    """(height, width) of the upright image, from the file's header; None where it cannot be read."""
    try:
        data = read_bytes(path, DEFAULT_LIMITS.max_bytes)
        if header_refusal(data):
            return None
        if is_jxl(data):
            return jxl_size(data)
        with _strict_warnings(), open_picture(BytesIO(data)) as image:
            sideways = image.getexif().get(_EXIF_ORIENTATION, 1) in _SIDEWAYS
            return (image.width, image.height) if sideways else (image.height, image.width)
    except Exception:  # decoders raise nearly every type on damaged input; each of them means this image is bad
        return None


def decode_image(data: bytes, name: str, limits: Limits = DEFAULT_LIMITS) -> np.ndarray:
    """An encoded image as uint8 [H, W, 3]: RGB, upright, first frame, transparency over white."""
    if not data:
        raise BadImage(name, "empty file")
    if len(data) > limits.max_bytes:
        raise BadImage(name, f"larger than {limits.max_bytes} bytes")
    if why := header_refusal(data):
        raise BadImage(name, why)
    if is_jxl(data):
        if (size := jxl_size(data)) is None:
            raise BadImage(name, "the JPEG XL file does not say its size")
        _check_size(size[1], size[0], name, limits)
    try:
        with _strict_warnings():
            image = open_picture(BytesIO(data))
        width, height = image.size
        _check_size(width, height, name, limits)
        with _strict_warnings() if image.format == "TIFF" else nullcontext():  # which reads tags, and warns, only now
            image.load()
        return pixels_of(image, name)
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(name, why_unknown(name)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(name, f"more than {limits.max_pixels} pixels") from None
    except Exception as error:  # as in `read_image_size`
        raise BadImage(name, str(error) or type(error).__name__) from None


def pixels_of(image: Image.Image, name: str) -> np.ndarray:
    """An opened picture as `decode_image` gives it."""
    return np.asarray(_to_rgb(_upright(image), name))


def _check_size(width: int, height: int, name: str, limits: Limits) -> None:
    if width < 1 or height < 1:
        raise BadImage(name, f"size {width}×{height}")
    if max(width, height) > limits.max_side:
        raise BadImage(name, f"{width}×{height}: a side over {limits.max_side} pixels")
    if width * height > limits.max_pixels:
        raise BadImage(name, f"{width}×{height}: more than {limits.max_pixels} pixels")


def _upright(image: Image.Image) -> Image.Image:
    if image.format == "JXL" and not image.jpeg:  # type: ignore[attr-defined]  # turned by its decoder already
        return image
    try:
        with _strict_warnings():
            orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # broken metadata around sound pixels: the picture is used as it is stored
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey (or 32-bit storage of it): keep the upper byte
        values = np.asarray(image).astype(np.int64)
        if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
            raise BadImage(name, "integer pixels beyond 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BadImage(name, "floating-point pixels have no agreed range; store 8 bits")
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        white = Image.new("RGBA", pixels.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, pixels).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def read_pictures(files: Iterable[Path]) -> Iterator[tuple[Path, np.ndarray | None, str]]:
    """(file, uint8 [H, W, 3], "") one by one; of those that cannot be read (file, None, why)."""
    for file in files:
        try:
            yield file, read_image_file(file, str(file)), ""
        except BadImage as bad:
            yield file, None, bad.reason
