"""Small files that claim much: each reader says so at once, before it decodes or allocates.

Each of these once kept a machine busy for minutes, filled its memory, or ended in a traceback.
"""

from __future__ import annotations

import bz2
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.sources import open_data
from nearsight.detection.model import build_detector
from nearsight.detection.recipe import DETECTION_RECIPES
from nearsight.detection.sources import has_boxes, open_parts
from nearsight.detection.voc_files import parse_xml
from nearsight.images.decode import decode_image, read_image_size
from nearsight.images.imageset import BadImage
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError
from nearsight.untrusted import model_size
from nearsight.untrusted.files import read_bytes, read_text
from nearsight.untrusted.limits import JPEG_SCANS
from nearsight.untrusted.plain_yaml import plain_yaml
from nearsight.weights import read_weights


def _encoded(kind: str, size: tuple[int, int] = (16, 16), **options) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 100, 50)).save(buffer, kind, **options)
    return buffer.getvalue()


def _with_scans(count: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A progressive JPEG with so many more scans, each of a header and one byte."""
    data = _encoded("JPEG", size, progressive=True)
    last = data.rindex(b"\xff\xda")
    (length,) = struct.unpack_from(">H", data, last + 2)
    return data[:-2] + (data[last : last + 2 + length] + b"\0") * count + b"\xff\xd9"


def _segments(marker: bytes, content: bytes, count: int) -> bytes:
    data = _encoded("JPEG")
    return data[:2] + (marker + struct.pack(">H", len(content) + 2) + content) * count + data[2:]


def _chunks(kind: bytes, content: bytes, count: int) -> bytes:
    data = _encoded("PNG")
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return data[:33] + chunk * count + data[33:]


_PROFILE = b"p\0\0" + zlib.compress(b"\0" * 1_000_000)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_with_scans(340_000, (1000, 1000)), f"more than {JPEG_SCANS} scans"),  # 4 MB
        (_segments(b"\xff\xfe", b"a comment", 1001), "more than 1000 segments"),
        (_segments(b"\xff\xe1", b"Exif\0\0x", 21), "more than 20 Exif segments"),
        (_chunks(b"iCCP", _PROFILE, 2), "more than 1 colour profile"),
        (_chunks(b"prVt", b"", 100_001), "more than 100000 chunks"),
    ],
    ids=["scans", "segments", "exif", "profiles", "chunks"],
)
def test_images_that_keep_a_decoder_busy(data, why, tmp_path):
    with pytest.raises(BadImage, match=why):
        decode_image(data, "x")
    (tmp_path / "x").write_bytes(data)
    assert read_image_size(tmp_path / "x") is None


@pytest.mark.parametrize(
    "data",
    [
        _with_scans(JPEG_SCANS - 20),
        _segments(b"\xff\xe2", b"\xff\xda" * 200, 3),  # the marker of a scan inside other data, as in thumbnails
        _encoded("JPEG") + b"\xff\xda" * 200,  # and behind the image, as in pictures with a film
        _encoded("JPEG", progressive=True, restart_marker_blocks=1),
        _chunks(b"iCCP", b"p\0\0" + zlib.compress(b"\0" * 1000), 1),
    ],
)
def test_images_with_much_in_them_are_still_read(data):
    assert decode_image(data, "x").shape[2] == 3


def test_a_tiff_of_many_tags_prints_nothing(recwarn):
    data = _encoded("TIFF")
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    more = b"".join(struct.pack("<HHII", 33_000 + i, 1, 10**6, len(data)) for i in range(3))
    listed = struct.pack("<H", count + 3) + data[first + 2 : first + 2 + 12 * count] + more + b"\0\0\0\0"
    decode_image(data[:4] + struct.pack("<I", len(data)) + data[8:] + listed, "x")
    assert [str(one.message) for one in recwarn] == []


_LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 26))


def _yolo_folder(root: Path, settings: str) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "images" / "a.png").write_bytes(_encoded("PNG"))
    (root / "data.yaml").write_text(settings)
    return root


def test_a_yolo_yaml_of_aliases(tmp_path):
    root = _yolo_folder(tmp_path / "set", _LAUGHS + "train: images\nnames: *a25\n")
    assert (root / "data.yaml").stat().st_size < 1000
    with pytest.raises(ValueError, match=r"data\.yaml: not valid yaml \(line 2: aliases are not read\)"):
        open_parts(root)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_LAUGHS, "aliases"),
        ("[" * 5_000, "recursion"),
        ("a: 1" + ":59" * 20_000, "a number of 60,001 characters"),
        ("a: " + "9" * 5000, "a number of 5,000 characters"),
        ("a: " + "x" * 100_001, "a value of 100,001 characters"),
        ("x" * (2**20 + 1), "at most 1,048,576 are read"),
        ("{? [a, b] : c}", "a key must be a word"),
        ("a: 2020-99-99", "month"),
        ("a: !!float x", "could not convert"),
        ("a: !!int ''", "index|int"),
        ("a: !!timestamp x", "NoneType|timestamp"),
        ("a: !!python/object/apply:os.system [ls]", "constructor"),
    ],
)
def test_yaml_that_costs_much_or_is_nonsense(text, why):
    with pytest.raises(ValueError, match=f"(?i){why}"):
        plain_yaml(text)


def _npz(path: Path, header: dict, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    labels = io.BytesIO()
    np.save(labels, np.arange(4) % 2)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("images.npy", stream.getvalue() + content)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def test_an_npz_whose_header_claims_more_than_it_holds(tmp_path):
    shape = {"descr": "|u1", "fortran_order": False, "shape": (4, 100_000, 100_000, 3)}
    path = _npz(tmp_path / "x.npz", shape, bytes(480_000), zipfile.ZIP_STORED)
    with pytest.raises(ValueError, match=r"images\.npy states 120,000,000,000 bytes and holds 480,000"):
        open_data(path)


def test_an_npz_that_unpacks_to_much(tmp_path):
    height = 2**28 + 2**20
    shape = {"descr": "|u1", "fortran_order": False, "shape": (4, height, 1, 1)}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, shape)
    packed = zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("images.npy", "w", force_zip64=True) as entry:
        entry.write(header.getvalue())
        for _ in range(64):
            entry.write(bytes(height // 16))
    with pytest.raises(ValueError, match=r"bytes unpack to 1,077,\d+,\d+, more than 100:1 \(images\.npy"):
        open_data(tmp_path / "x.npz")


def _parquet(path: Path, images, labels) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"image": images, "label": labels}), path, compression="zstd")
    return path


def _repeated(value: bytes, count: int):
    pa = pytest.importorskip("pyarrow")
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], pa.binary()))


@pytest.mark.parametrize(
    ("value", "count", "why"),
    [
        (os.urandom(20_000), 1_000_000, "claims 1,000,000 rows"),
        (bytes(20_000_000), 1000, "claims 1,000 rows and 20,0"),
        (os.urandom(20_000), 5_000, "images unpack to more than 100 times its"),
        (None, 2_000_000, "claims 2,000,000 rows"),
    ],
)
def test_a_parquet_that_unpacks_to_much(tmp_path, value, count, why):
    pa = pytest.importorskip("pyarrow")
    images = pa.nulls(count, pa.binary()) if value is None else _repeated(value, count)
    path = _parquet(tmp_path / "x.parquet", images, pa.array(np.arange(count) % 2))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=why):
        open_data(path)


def _store(tmp_path: Path) -> tuple[CheckpointStore, Path]:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, {"model": {"weight": torch.ones(4)}}, {"note": "x"})
    return store, store.path(3) / "model.safetensors"


@pytest.mark.parametrize("kind", ["zero", "sparse", "fifo", "folder"])
def test_a_checkpoint_file_that_is_not_what_the_manifest_states(tmp_path, kind):
    store, path = _store(tmp_path)
    path.unlink()
    if kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(2**42)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DiskError, match=r"model\.safetensors"):
        store.load(3)


@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json"])
def test_a_checkpoint_of_a_terabyte_of_json(tmp_path, name):
    store, _ = _store(tmp_path)
    with open(store.path(3) / name, "wb") as file:
        file.truncate(2**40)
    if name == "state.json":
        manifest = store.path(3) / "MANIFEST.json"
        content = json.loads(manifest.read_text())
        content["files"][name]["size"] = 2**40
        manifest.write_text(json.dumps(content))
    with pytest.raises(DiskError, match="larger than"):
        store.load(3)


@pytest.mark.parametrize(
    "content",
    [
        b"12345678",
        b"\x80\x02(s}q].",
        b"\x80\x02hs0Nb.",
        b"\x80\x02\x80.X)a.",
        b"",
        b"\x80",
        b"\x80\x02}q\x00.",
        b"PK\x03\x04abcd",
        b"PK\x05\x06" + bytes(18),
    ],
)
def test_a_pth_of_a_few_bytes(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.pth"):
        read_weights(tmp_path / "w.pth")


def test_a_pth_that_is_a_zip_bomb(tmp_path):
    torch.save({"w": torch.zeros(10_000_000)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(tmp_path / "w.pth", "w", 8) as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    with pytest.raises(ValueError, match="is compressed, which torch never does"):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**6, 10**6),
        torch.sparse_coo_tensor(size=(10**6, 10**6), check_invariants=True),
        torch.empty(10**12, device="meta"),
    ],
    ids=["expanded", "sparse", "meta"],
)
def test_a_pth_whose_shapes_have_no_numbers(tmp_path, tensor):
    torch.save({"w": tensor}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"w\.pth was refused"):
        read_weights(tmp_path / "w.pth")


def test_weights_of_other_shapes_are_not_looked_through(tmp_path):
    """Only numbers that go into the model are checked one by one."""
    from nearsight.weights import load_weights

    with pytest.raises(ValueError, match="instead of"):
        load_weights(
            torch.nn.Linear(2, 1), {"weight": torch.zeros(1).expand(10**7, 10**7), "bias": torch.zeros(1)}, "w"
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 1e39),
        ("lr", 10**400),
        ("weight_decay", -(10**400)),
        ("epochs", 1e300),
        ("image_size", 10**7),
        ("workers", 10**9),
        ("batch", 10**5000),
        ("seed", 10**100),
        ("randaugment_ops", 10**8),
        ("repeats", 10**8),
        ("model_options", {"depth": 10**7}),
        ("model_options", {"embed_dim": float("nan")}),
        ("model_options", {"sizes": [1, {"x": -(10**5000)}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field}.* must be "):
        ClassificationRecipe(data="x", **{field: value})


_VIT = "timm:vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("convit_tiny", {"depth": 900_000}, "convit_tiny would have more than 300 layers"),
        (_VIT, {"depth": 900_000}, "would have more than 300 layers"),
        ("convit_tiny", {"mlp_ratio": 100_000}, "convit_tiny would have more than 20,000,000,000 parameters"),
        (_VIT, {"embed_dim": 998_400, "num_heads": 4}, "would have more than 20,000,000,000 parameters"),
        ("convit_tiny", {"num_heads": 0}, "num_heads must be"),
        (_VIT, {"num_heads": 0}, "vit_tiny_patch16_224"),
        ("convit_tiny", {"depth": "many"}, "depth must be"),
        (_VIT, {"depth": "many"}, "vit_tiny_patch16_224"),
    ],
)
def test_models_that_no_machine_holds(monkeypatch, model, options, why):
    monkeypatch.setattr(model_size, "MODEL_MODULES", 300)  # to be there in a second
    recipe = ClassificationRecipe(data="x", model=model, model_options=options)
    with pytest.raises(ValueError, match=why):
        build_classifier(recipe, 10)


def test_detectors_that_no_machine_holds():
    recipe = DETECTION_RECIPES["retinanet_small"].with_changes(model_options={"channels": 999_936})
    with pytest.raises(ValueError, match="more than 20,000,000,000 parameters"):
        build_detector(recipe, 3)


def test_the_size_of_a_model_is_checked_without_touching_chance():
    recipe = ClassificationRecipe(data="x", model="convit_tiny_32", image_size=32)
    torch.manual_seed(1)
    plain = build_classifier(recipe, 3).state_dict()
    torch.manual_seed(1)
    checked = build_classifier(recipe.with_changes(model_options={"locality_strength": 1.0}), 3).state_dict()
    assert all(torch.equal(plain[name], checked[name]) for name in plain)


def _pax_bomb(path: Path) -> Path:
    """A tar of a few kilobytes whose first header claims, and unpacks to, 64 megabytes."""
    info = tarfile.TarInfo("./PaxHeaders/x")
    info.type, info.size = tarfile.XHDTYPE, 2**26
    packer = bz2.BZ2Compressor()
    with open(path, "wb") as file:
        file.write(packer.compress(info.tobuf(tarfile.USTAR_FORMAT)))
        for _ in range(64):
            file.write(packer.compress(bytes(2**20)))
        file.write(packer.flush())
    return path


def test_a_packed_tar_with_a_header_of_64_megabytes(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path / "cache"))
    path = _pax_bomb(tmp_path / "x.tar.bz2")
    assert path.stat().st_size < 2**20
    with pytest.raises(ValueError, match="over 200:1"):
        open_data(path)
    assert not has_boxes(path)


def test_xml_that_nests_or_repeats_without_end(tmp_path):
    deep, wide = tmp_path / "deep.xml", tmp_path / "wide.xml"
    deep.write_text("<annotation>" + "<a>" * 200)
    wide.write_text("<annotation>" + "<a/>" * 200_001)
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        parse_xml(deep)
    with pytest.raises(ValueError, match="more than 200000 elements"):
        parse_xml(wide)


def test_what_is_no_plain_file_is_not_opened_for_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="not a plain file"):
            read_bytes(path, 100)
    (tmp_path / "text").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "text", 8) == "a\nb\nc\n"
    with pytest.raises(ValueError, match=r"text: larger than 6 bytes"):
        read_text(tmp_path / "text", 6)
    with pytest.raises(ValueError, match="has 7 bytes instead of 8"):
        read_bytes(tmp_path / "text", 100, exactly=8)
