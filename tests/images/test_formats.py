"""Newer formats: AVIF by Pillow itself, HEIC and JPEG XL by plug-ins of it, and what is said where there are none."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.images import formats
from nearsight.images.decode import decode_image, read_image_file, read_image_size
from nearsight.images.formats import IMAGE_SUFFIXES, readable_suffixes
from nearsight.images.imageset import BadImage
from nearsight.images.jxl_header import jxl_size

HEIC = Path(__file__).parent / "files" / "sideways.heic"  # the picture of seed 3, 40×64 pixels, turned right


@pytest.fixture
def jxl() -> None:
    pytest.importorskip("pillow_jxl")


def encoded(pixels: np.ndarray, kind: str, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def test_avif_is_read(picture, tmp_path):
    file = tmp_path / "x.avif"
    file.write_bytes(encoded(picture(3, 40, 64), "AVIF", quality=100))
    assert np.abs(read_image_file(file, "x").astype(int) - picture(3, 40, 64)).mean() < 12
    assert read_image_size(file) == (40, 64)
    assert ".avif" in readable_suffixes()


def test_heic_is_read_and_stands_upright(picture):
    pytest.importorskip("pi_heif")
    pixels = read_image_file(HEIC, "x")
    assert np.abs(pixels.astype(int) - np.rot90(picture(3, 40, 64), -1)).mean() < 12  # turned otherwise it is over 40
    assert read_image_size(HEIC) == (64, 40)


@pytest.mark.parametrize("options", [{}, {"use_container": True}, {"lossless": True}])
def test_jpeg_xl_is_read(picture, tmp_path, jxl, options):
    file = tmp_path / "x.jxl"
    file.write_bytes(encoded(picture(3, 40, 61), "JXL", **options))
    assert np.abs(read_image_file(file, "x").astype(int) - picture(3, 40, 61)).mean() < 12
    assert read_image_size(file) == (40, 61)


def test_a_jpeg_in_a_jpeg_xl_file_stands_upright(picture, tmp_path, jxl):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(3, 40, 64)).save(tmp_path / "x.jpg", exif=exif)
    with Image.open(tmp_path / "x.jpg") as image:
        image.save(tmp_path / "x.jxl", lossless_jpeg=True)
    assert np.array_equal(read_image_file(tmp_path / "x.jxl", "x"), read_image_file(tmp_path / "x.jpg", "x"))
    assert read_image_size(tmp_path / "x.jxl") == (64, 40)


def test_sizes_in_jpeg_xl_headers_are_those_that_were_encoded(jxl):
    import pillow_jxl

    draw = random.Random(0)
    shapes = [(8, 8), (8, 256), (90, 120), (120, 90), (108, 192), (1, 700), (5000, 1)]
    shapes += [(draw.randrange(1, 300), draw.randrange(1, 300)) for _ in range(20)]
    for height, width in shapes:
        encode = pillow_jxl.Encoder(
            mode="L",
            lossless=False,
            quality=10,
            decoding_speed=0,
            effort=1,
            use_container=False,
            use_original_profile=False,
            num_threads=0,
        )
        data = encode(bytes(height * width), width, height, jpeg_encode=False)
        assert jxl_size(data) == (height, width)


def jxl_start(height: int, width: int, orientation: int) -> bytes:
    """The first bytes of a codestream: both sides in 18 bits, not all metadata by default."""
    parts = [(0, 1), (2, 2), (height - 1, 18), (0, 3), (2, 2), (width - 1, 18), (0, 1), (1, 1), (orientation - 1, 3)]
    value = place = 0
    for number, bits in parts:
        value |= number << place
        place += bits
    return b"\xff\x0a" + value.to_bytes(40, "little")


def test_the_orientation_in_a_jpeg_xl_header_turns_its_size():
    assert jxl_size(jxl_start(30, 44, 1)) == (30, 44)
    assert jxl_size(jxl_start(30, 44, 6)) == (44, 30)
    assert jxl_size(b"\xff\x0a\0") is None
    assert jxl_size(b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(100)) is None


def test_a_jpeg_xl_bomb_is_refused_before_it_is_decoded():
    with pytest.raises(BadImage, match=r"30000×30000: more than 64000000 pixels"):
        decode_image(jxl_start(30_000, 30_000, 1), "bomb.jxl")


def test_without_its_plugin_a_format_is_known_but_not_read(monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    assert not {".heic", ".jxl"} & set(readable_suffixes())
    assert {".heic", ".jxl"} < set(IMAGE_SUFFIXES)
    with pytest.raises(BadImage, match=r'to read files that end so, pip install "nearsight\[formats\]"'):
        read_image_file(HEIC, HEIC.name)
