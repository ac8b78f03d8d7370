"""Every reader of files from elsewhere against damaged ones: a value or a clear error, in bounded time and memory.

Some dozens of cases each by default, the same ones every time. `make fuzz CASES=100000` runs more, with fresh random
numbers, and prints how many each reader was given.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import altered, damaged, values
from PIL import Image
from safetensors.torch import save as serialise

from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.datasets.content import file_checksums
from nearsight.datasets.shards import open_shards
from nearsight.datasets.tables import open_npz, open_parquet
from nearsight.detection.coco_files import read_coco
from nearsight.detection.sources import open_parts
from nearsight.detection.voc_files import read_voc
from nearsight.images.decode import decode_image, read_image_size
from nearsight.images.files import PassedOver
from nearsight.images.imageset import BadImage
from nearsight.recipes.files import read_changes, thaw
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError
from nearsight.runs.metrics_log import read_metrics
from nearsight.untrusted.plain_yaml import plain_yaml
from nearsight.weights import read_weights

CASES = int(os.environ.get("NEARSIGHT_FUZZ_CASES", "0"))
_SECONDS = 20
_GROWTH = 3 * 2**30  # bytes of address space that a case may ask for
_HELD = 2**20  # KiB that it may use
FEW, MANY = CASES or 20, CASES or 40
ran: dict[str, int] = {}


def cases(count: int) -> Callable:
    """So many cases; the same ones by default, fresh ones where more are asked for."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=not CASES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class TooLong(BaseException):
    """Passes through readers that catch every Exception."""


def _too_long(*_: object) -> None:
    raise TooLong(f"more than {_SECONDS} seconds")


@contextmanager
def bounded(reader: str) -> Iterator[None]:
    """A value or a clear error, within a time, and with memory for no more than is sensible."""
    ran[reader] = ran.get(reader, 0) + 1
    before = signal.signal(signal.SIGALRM, _too_long)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.alarm(_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _GROWTH, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ValueError, BadImage, DiskError) as error:
        if not str(error).strip():
            raise AssertionError(f"{type(error).__name__} without a word") from error
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < _HELD, f"the process grew by {grown:,} KiB"


@pytest.fixture(scope="module", autouse=True)
def counted():
    yield
    if CASES:
        print("\nfuzzed: " + ", ".join(f"{name} {count:,}" for name, count in sorted(ran.items())))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def _picture(kind: str, mode: str = "RGB", **options) -> bytes:
    stream = io.BytesIO()
    colours = np.random.default_rng(0).integers(0, 255, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(colours).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a word"
    return exif


PICTURES = (
    _picture("JPEG", exif=_exif()),
    _picture("JPEG", progressive=True, icc_profile=b"x" * 40),
    _picture("PNG", exif=_exif(), icc_profile=b"x" * 40),
    _picture("PNG", "P"),
    _picture("GIF", "P", save_all=True, append_images=[Image.new("P", (11, 9), 3)]),
    _picture("WEBP", exif=_exif()),
    _picture("WEBP", save_all=True, append_images=[Image.new("RGB", (11, 9))]),
    _picture("TIFF", exif=_exif()),
    _picture("TIFF", compression="tiff_lzw"),
    _picture("TIFF", "L", compression="tiff_adobe_deflate"),
    _picture("BMP"),
    _picture("PPM"),
    b"P3\n2 2\n255\n" + b"1 2 3 " * 4,
)


@cases(3 * MANY)
@given(data=damaged(PICTURES))
def test_images(place, data):
    with bounded("images"):
        found = decode_image(data, "x")
        assert found.dtype == np.uint8
        assert found.ndim == 3
    (place / "x").write_bytes(data)
    with bounded("image sizes"):
        read_image_size(place / "x")


def _npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


_PIXELS = np.random.default_rng(0).integers(0, 255, (6, 4, 4, 3), dtype=np.uint8)
NPZS = (
    _npz(images=_PIXELS, labels=np.arange(6) % 2),
    _npz(train_images=_PIXELS[..., 0], train_labels=np.array(["a", "b"] * 3), classes=np.array(["a", "b"])),
    _npz(images=_PIXELS, labels=np.array([b"a", b"b"] * 3)),
)


def _looked_through(parts) -> None:
    for images in parts.values():
        for index in range(min(len(images), 3)):
            images.read(index)
        images.fingerprint()


@cases(MANY)
@given(data=damaged(NPZS))
def test_npz(place, data):
    (place / "x.npz").write_bytes(data)
    with bounded("npz"):
        _looked_through(open_npz(place / "x.npz"))


@st.composite
def claimed_arrays(draw: st.DrawFn) -> bytes:
    """A sound .zip around a header of any numbers."""
    number = st.one_of(st.integers(-2, 9), st.sampled_from((2**31, 2**40, 2**63, 10**30)))
    header = {
        "descr": draw(st.sampled_from(("|u1", "<f8", "<U9", "|O", "|V9", "<U99999999", "x", "<M8[ns]"))),
        "fortran_order": draw(st.booleans()),
        "shape": tuple(draw(st.lists(number, max_size=5))),
    }
    stream, labels = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    np.save(labels, np.arange(6) % 2)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", draw(st.sampled_from((0, 8)))) as archive:
        archive.writestr("images.npy", stream.getvalue() + bytes(draw(st.integers(0, 400))))
        archive.writestr("labels.npy", labels.getvalue())
    return packed.getvalue()


@cases(MANY)
@given(data=claimed_arrays())
def test_npz_of_any_header(place, data):
    (place / "y.npz").write_bytes(data)
    with bounded("npz"):
        _looked_through(open_npz(place / "y.npz"))


def _parquets() -> tuple[bytes, ...]:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    images, labels = pa.array([PICTURES[3]] * 6), pa.array([0, 1] * 3)
    nested = pa.array([{"bytes": PICTURES[3], "path": "a"}] * 6)
    found = []
    for table, compression in (
        (pa.table({"image": images, "label": labels}), "none"),
        (pa.table({"image": nested, "label": pa.array(["a", "b"] * 3)}), "snappy"),
        (pa.table({"image": images, "label": labels}), "zstd"),
    ):
        stream = io.BytesIO()
        parquet.write_table(table, stream, compression=compression)
        found.append(stream.getvalue())
    return tuple(found)


@cases(MANY)
@given(data=st.data())
def test_parquet(place, data):
    (place / "x.parquet").write_bytes(data.draw(damaged(_parquets())))
    with bounded("parquet"):
        _looked_through(open_parquet([place / "x.parquet"], place))


def _shard() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as tar:
        for number in range(3):
            for suffix, content in (("png", PICTURES[3]), ("json", b'{"label": %d}' % (number % 2)), ("cls", b"1")):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@cases(MANY)
@given(data=damaged((_shard(),)))
def test_shards(place, data):
    (place / "x.tar").write_bytes(data)
    with bounded("shards"):
        _looked_through(open_shards([place / "x.tar"], place, PassedOver()))


COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 9, "width": 11}],
    "categories": [{"id": 3, "name": "cell"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 4, 4], "area": 9.5, "iscrowd": 0}],
}


def _beside(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(PICTURES[2])
    return folder


@cases(MANY)
@given(data=damaged((json.dumps(COCO).encode(),)))
def test_coco(place, data):
    path = _beside(place, "coco") / "train.json"
    path.write_bytes(data)
    with bounded("COCO"):
        read_coco(path, "train").build().fingerprint()


@cases(MANY)
@given(content=altered(COCO))
def test_coco_of_any_values(place, content):
    path = _beside(place, "coco2") / "train.json"
    path.write_text(json.dumps(content))
    with bounded("COCO"):
        read_coco(path, "train").build().fingerprint()


VOC = (
    b"<annotation><filename>a.png</filename><size><width>11</width><height>9</height><depth>3</depth></size><object>"
    b"<name>cell</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
    b"</object></annotation>"
)


@cases(MANY)
@given(data=damaged((VOC,)))
def test_voc(place, data):
    folder = _beside(place, "voc")
    (folder / "a.xml").write_bytes(data)
    with bounded("VOC"):
        read_voc(folder, [folder / "a.xml"]).build().fingerprint()


YOLO = b"names: {0: cell, 1: other}\ntrain: images\nval: images\n"


@cases(FEW)
@given(setting=damaged((YOLO,)), labels=damaged((b"0 0.5 0.5 0.4 0.4\n1 0.2 0.2 0.1 0.1\n",)), which=st.booleans())
def test_yolo(place, setting, labels, which):
    folder = place / "yolo"
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "images" / "a.png").write_bytes(PICTURES[2])
    (folder / "data.yaml").write_bytes(setting if which else YOLO)
    (folder / "labels" / "a.txt").write_bytes(b"" if which else labels)
    with bounded("YOLO"):
        for images in open_parts(folder).sets.values():
            images.fingerprint()


RECIPE = yaml.safe_dump({"model": "convit_tiny", "epochs": 3.0, "lr": 1e-3, "model_options": {"depth": 2}}).encode()


@cases(MANY)
@given(data=damaged((RECIPE, YOLO, b"a: [1, 2.5, .nan, 2020-01-01, 0x1f, 1:30, !!binary aGk=]\n? b\n: |\n  text\n")))
def test_yaml(place, data):
    with bounded("yaml"):
        plain_yaml(data.decode("utf-8", "replace"))
    (place / "recipe.yaml").write_bytes(data)
    with bounded("recipes"):
        read_changes(place / "recipe.yaml")


FROZEN = ClassificationRecipe(data="x").as_dict()


@cases(MANY)
@given(content=altered(FROZEN))
def test_settings_of_any_values(place, content):
    (place / "config.yaml").write_text(yaml.safe_dump(content))
    with bounded("settings"):
        thaw(place / "config.yaml")


_OPTIONS = st.dictionaries(
    st.sampled_from(("depth", "width", "num_heads", "mlp_ratio", "locality_strength", "num_gated_blocks", "pos_embed")),
    st.one_of(st.integers(-2, 6), st.sampled_from((10**5, 10**6, 0.5, -1.0, True, "x", None, [1], {"a": 1}))),
    max_size=3,
)


@cases(FEW // 2)
@given(options=_OPTIONS)
def test_models_of_any_options(options):
    with bounded("model options"):
        recipe = ClassificationRecipe(
            data="x", model="convit_nano_32", image_size=8, patch_size=4, model_options=options
        )
        build_classifier(recipe, 3)


TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}


@cases(MANY)
@given(data=damaged((serialise(TENSORS),)))
def test_safetensors(place, data):
    (place / "w.safetensors").write_bytes(data)
    with bounded("safetensors"):
        read_weights(place / "w.safetensors")


def _pth(zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save({"model": TENSORS}, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


@cases(MANY)
@given(data=damaged((_pth(True), _pth(False))))
def test_pth(place, data):
    (place / "w.pth").write_bytes(data)
    with bounded("pth"):
        read_weights(place / "w.pth")


@cases(FEW)
@given(data=st.data())
def test_checkpoints(place, data):
    store = CheckpointStore(place / "checkpoints")
    shutil.rmtree(store.folder, ignore_errors=True)
    store.save(3, {"model": TENSORS}, {"note": "x", "best": {"step": 3}}, {"metrics.jsonl": b'{"step": 1}\n'})
    path = store.path(3) / data.draw(
        st.sampled_from(("MANIFEST.json", "MANIFEST.json", "state.json", "model.safetensors"))
    )
    path.write_bytes(data.draw(damaged((path.read_bytes(),))))
    with bounded("checkpoints"):
        store.load(3)
    (store.folder / "best.json").write_bytes(data.draw(damaged((b'{"step": 3}',))))
    with bounded("pointers"):
        store.pointed("best")


@cases(FEW)
@given(content=altered({"format": 1, "files": {"state.json": {"size": 3, "sha256": "ab"}}}), state=values())
def test_manifests_of_any_values(place, content, state):
    folder = place / "other" / "step-00000003"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MANIFEST.json").write_text(json.dumps(content))
    (folder / "state.json").write_text(json.dumps(state))
    with bounded("checkpoints"):
        CheckpointStore(place / "other").load(3)


@cases(FEW)
@given(data=damaged((b'{"kind": "train", "step": 1, "loss": 0.5}\n{"kind": "eval", "step": 2}\n',)))
def test_logs(place, data):
    (place / "metrics.jsonl").write_bytes(data)
    with bounded("logs"):
        assert all(isinstance(record, dict) for record in read_metrics(place / "metrics.jsonl"))


@cases(FEW)
@given(place_of=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255), keep=st.floats(0, 1))
def test_remembered_checksums(place, place_of, byte, keep):
    """What is remembered of files is a file too: damaged, it is as if it were not there."""
    folder = _beside(place, "sums")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("NEARSIGHT_DATA", str(place / "cache"))
        changed.setattr("nearsight.datasets.content._SETTLED", -1)
        expected = file_checksums(folder, ["a.png"])
        (kept,) = (place / "cache" / "checksums").iterdir()
        data = bytearray(kept.read_bytes())
        data[int(place_of * len(data))] ^= byte
        kept.write_bytes(data[: round(keep * len(data))])
        with bounded("checksums"):
            assert np.array_equal(file_checksums(folder, ["a.png"]), expected)
