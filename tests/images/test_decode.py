"""Odd, damaged and hostile images: each is read sensibly or refused with its name and the reason."""

import contextlib
import io
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from nearsight.images.decode import Limits, decode_image, read_image_file
from nearsight.images.imageset import BadImage


def encoded(image, kind="PNG", **options) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def one_bit_png(height: int, width: int) -> bytes:
    """Written by hand: making such an image in memory is what the reader must not do either."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_lossless_formats_come_back_exactly(picture, kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(decode_image(encoded(picture(0), kind, **options), "x"), picture(0))


def test_grey_palette_and_one_bit(picture):
    grey = Image.fromarray(picture(1)).convert("L")
    assert np.array_equal(decode_image(encoded(grey), "x"), np.repeat(np.asarray(grey)[..., None], 3, axis=2))
    palette = Image.fromarray(picture(1)).quantize(16)
    assert np.array_equal(decode_image(encoded(palette), "x"), np.asarray(palette.convert("RGB")))
    bits = grey.convert("1")
    assert set(np.unique(decode_image(encoded(bits), "x"))) == {0, 255}


def test_cmyk_keeps_its_colours():
    red = Image.new("CMYK", (16, 8), (0, 255, 255, 0))
    assert np.abs(decode_image(encoded(red, "JPEG"), "x").mean(axis=(0, 1)) - [255, 0, 0]).max() < 12


def test_sixteen_bits_keep_the_upper_byte():
    ramp = (np.arange(35, dtype=np.uint16) * 1800).reshape(5, 7)
    assert np.array_equal(decode_image(encoded(Image.fromarray(ramp)), "x")[..., 1], ramp >> 8)


def test_transparency_lies_over_white(picture):
    pixels = np.dstack([picture(2), np.full((9, 13), 255, np.uint8)])
    pixels[:4, :, 3] = 0
    out = decode_image(encoded(pixels), "x")
    assert (out[:4] == 255).all()
    assert np.array_equal(out[4:], picture(2)[4:])
    keyed = encoded(Image.new("P", (3, 2), 0), transparency=0)
    assert (decode_image(keyed, "x") == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_stand_upright(picture, orientation):
    """Store the picture as a camera held that way would; the reader must undo it."""
    stored = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }[orientation](picture(3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(decode_image(encoded(np.ascontiguousarray(stored), exif=exif), "x"), picture(3))


def test_broken_metadata_does_not_lose_a_sound_picture(picture):
    data = encoded(picture(3), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff garbage")
    assert decode_image(data, "x").shape == (9, 13, 3)


def test_the_first_frame_of_an_animation(picture):
    frames = [Image.fromarray(picture(seed)).quantize(64) for seed in range(3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode_image(data, "x"), np.asarray(frames[0].convert("RGB")))


@pytest.mark.parametrize("shape", [(1, 1), (1, 10_000)])
def test_extreme_but_honest_shapes_are_read(shape):
    assert decode_image(encoded(np.full((*shape, 3), 9, np.uint8)), "x").shape == (*shape, 3)


def wrong_crc(data: bytes, kind: bytes) -> bytes:
    start = data.index(kind)
    (length,) = struct.unpack(">I", data[start - 4 : start])
    end = start + 4 + length
    return data[:end] + bytes([data[end] ^ 1]) + data[end + 1 :]


@pytest.fixture
def damaged(picture) -> dict[str, bytes]:
    jpeg, png = encoded(picture(4, 64, 96), "JPEG"), encoded(picture(4))
    return {
        "half a JPEG": jpeg[: len(jpeg) // 2],
        "half a PNG": png[: len(png) // 2],
        "nothing": b"",
        "text": b"<html>not found</html>",
        "wrong checksum": wrong_crc(png, b"IDAT"),
        "wrong header checksum": wrong_crc(png, b"IHDR"),
        "half a GIF": encoded(picture(4, 64, 96), "GIF")[:300],
        "half a WebP": encoded(picture(4, 64, 96), "WEBP")[:100],
        "half a TIFF": encoded(picture(4, 64, 96), "TIFF")[:300],
    }


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("half a JPEG", "truncated"),
        ("half a PNG", "cut short"),
        ("nothing", "empty file"),
        ("text", "not an image"),
        ("wrong checksum", "wrong checksum in PNG chunk IDAT"),
        ("wrong header checksum", "wrong checksum in PNG chunk IHDR"),
        ("half a GIF", "."),
        ("half a WebP", "."),
        ("half a TIFF", "."),
    ],
)
def test_damage_is_named(damaged, fault, reason):
    with pytest.raises(BadImage, match=reason) as caught:
        decode_image(damaged[fault], "dog.jpg")
    assert caught.value.name == "dog.jpg"
    assert caught.value.reason


def test_random_damage_never_raises_anything_else(picture):
    rng = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        sound = encoded(picture(5, 20, 30), kind)
        for _ in range(40):
            data = bytearray(sound)
            for place in rng.integers(0, len(data), 4):
                data[place] = rng.integers(0, 256)
            with contextlib.suppress(BadImage):
                assert decode_image(bytes(data), "x").dtype == np.uint8


def test_files_that_vanish_or_may_not_be_read(tmp_path, picture):
    with pytest.raises(BadImage, match="No such file"):
        read_image_file(tmp_path / "gone.png", "gone.png")
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path, tmp_path / "pipe.png"):  # a pipe that nobody writes to would be waited for
        with pytest.raises(BadImage, match="not a plain file"):
            read_image_file(path, path.name)
    (tmp_path / "big.png").write_bytes(encoded(picture(0)))
    with pytest.raises(BadImage, match="larger than 10 bytes"):
        read_image_file(tmp_path / "big.png", "big.png", Limits(max_bytes=10))


def test_bombs_are_refused_from_the_header():
    bomb = one_bit_png(24_000, 24_000)
    assert len(bomb) < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadImage, match="pixels"):
        decode_image(bomb, "bomb.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    with pytest.raises(BadImage, match=r"9000×9000: more than 64000000 pixels"):
        decode_image(one_bit_png(9000, 9000), "large.png")
    with pytest.raises(BadImage, match="a side over 32000"):
        decode_image(one_bit_png(1, 65_000), "strip.png")
    with pytest.raises(BadImage, match="a side over 8"):
        decode_image(one_bit_png(9, 3), "x", Limits(max_side=8))


def test_bombs_in_the_metadata_and_in_later_frames(picture):
    sound = encoded(picture(6))
    packer = zlib.compressobj(9)
    text = b"".join(packer.compress(bytes(2**20)) for _ in range(100)) + packer.flush()
    bomb = sound[:33] + png_chunk(b"zTXt", b"Comment\0\0" + text) + sound[33:]  # after the header chunk
    frames = [Image.new("L", (40, 30), shade % 256) for shade in range(500)]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(BadImage):  # the picture itself is sound, so either answer will do
        assert np.array_equal(decode_image(bomb, "text.png"), picture(6))
    assert decode_image(animation, "long.gif").shape == (30, 40, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_names_cannot_forge_log_lines():
    with pytest.raises(BadImage) as caught:
        decode_image(b"", "a\nerror: all is lost\x1b[31m.png")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
