"""Archives: nothing outside the target, refused entries named, bombs stopped, nothing half-done left."""

import io
import stat
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from nearsight.datasets.archive import ArchiveLimits, safe_extract
from nearsight.datasets.sources import open_data


def tar_of(path, *members: tuple[tarfile.TarInfo, bytes], mode="w"):
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, **attributes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def everything_below(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def check_refused(tmp_path, archive, message, **options):
    before = everything_below(tmp_path)
    with pytest.raises(ValueError, match=message):
        safe_extract(archive, tmp_path / "out", (".txt",), **options)
    assert everything_below(tmp_path) == before


GOOD = (member("a/1.txt"), b"one")


@pytest.mark.parametrize(
    ("info", "named"),
    [
        (member("../escaped.txt"), r"\.\./escaped\.txt"),
        (member("a/../../escaped.txt"), "escaped"),
        (member("/tmp/absolute.txt"), "/tmp/absolute"),
        (member("link", type=tarfile.SYMTYPE, linkname="/etc"), "'link': not a plain file"),
        (member("hard", type=tarfile.LNKTYPE, linkname="a/1.txt"), "'hard': not a plain file"),
        (member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "'null': not a plain file"),
        (member("pipe", type=tarfile.FIFOTYPE), "'pipe': not a plain file"),
        (member("A/1.TXT"), "same name twice"),
        (member("a\\..\\b.txt"), "foreign path"),
        (member("x" * 300), "longer than 255"),
    ],
)
def test_tar_entries_that_are_refused(tmp_path, info, named):
    check_refused(tmp_path, tar_of(tmp_path / "bad.tar", GOOD, (info, b"")), named)


def zip_of(path, *entries: tuple[str, bytes, int]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


@pytest.mark.parametrize(
    ("name", "mode", "named"),
    [
        ("../escaped.txt", 0o644, r"\.\./escaped\.txt"),
        ("/absolute.txt", 0o644, "absolute"),
        ("C:/windows.txt", 0o644, "foreign path"),
        ("link", stat.S_IFLNK | 0o777, "'link': not a plain file"),
        ("A/1.TXT", 0o644, "same name twice"),
    ],
)
def test_zip_entries_that_are_refused(tmp_path, name, mode, named):
    check_refused(tmp_path, zip_of(tmp_path / "bad.zip", ("a/1.txt", b"one", 0o644), (name, b"/etc", mode)), named)


def test_too_many_entries(tmp_path):
    archive = zip_of(tmp_path / "many.zip", *((f"{n}.txt", b"", 0o644) for n in range(12)))
    check_refused(tmp_path, archive, "more than 10 entries", limits=ArchiveLimits(max_entries=10))


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz"])
def test_bombs_are_stopped_and_cleaned_up(tmp_path, kind):
    zeros = bytes(20 * 2**20)
    if kind == "zip":
        archive = zip_of(tmp_path / "bomb.zip", ("zeros.txt", zeros, 0o644))
    else:
        archive = tar_of(tmp_path / f"bomb.{kind}", (member("zeros.txt"), zeros), mode=f"w:{kind[4:]}")
    assert archive.stat().st_size < len(zeros) / 100
    check_refused(tmp_path, archive, r"over 100:1.*zeros\.txt")
    check_refused(tmp_path, archive, "too large", limits=ArchiveLimits(max_bytes=1000, max_ratio=1e9))


def test_a_header_that_lies_about_the_size(tmp_path):
    """The count is of bytes written, not of what the directory of the zip claims."""
    archive = zip_of(tmp_path / "liar.zip", ("zeros.txt", bytes(8 * 2**20), 0o644))
    data = archive.read_bytes().replace((8 * 2**20).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    archive.write_bytes(data)
    check_refused(tmp_path, archive, "liar")


@pytest.mark.parametrize("name", ["cut.zip", "cut.tar.gz"])
def test_damaged_archives(tmp_path, name):
    archive = tmp_path / name
    noise = np.random.default_rng(0).bytes(5000)
    if name.endswith("zip"):
        zip_of(archive, ("noise.txt", noise, 0o644))
    else:
        tar_of(archive, (member("noise.txt"), noise), mode="w:gz")
    archive.write_bytes(archive.read_bytes()[:2500])
    check_refused(tmp_path, archive, "cut")


def test_setuid_is_dropped_and_packed_archives_stay_packed(tmp_path):
    inner = zip_of(tmp_path / "inner.zip", ("x.txt", b"x", 0o644)).read_bytes()
    archive = tar_of(tmp_path / "ok.tar", (member("a/tool.txt", mode=0o6777), b"x"), (member("inner.zip"), inner))
    safe_extract(archive, tmp_path / "out", (".txt", ".zip"))
    assert everything_below(tmp_path / "out") == {"a", "a/tool.txt", "inner.zip"}
    assert not (tmp_path / "out" / "a" / "tool.txt").stat().st_mode & 0o6111


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_an_archive_of_an_image_folder_is_data(tmp_path, monkeypatch, picture, kind):
    monkeypatch.setenv("NEARSIGHT_DATA", str(tmp_path / "cache"))
    files = {"set/README.md": b"hello"}
    for split, count in (("train", 3), ("val", 2)):
        for class_name in ("cat", "dog"):
            for number in range(count):
                out = io.BytesIO()
                Image.fromarray(picture(number)).save(out, "PNG")
                files[f"set/{split}/{class_name}/{number}.png"] = out.getvalue()
    archive = tmp_path / f"set.{kind}"
    if kind == "zip":
        zip_of(archive, *((name, content, 0o644) for name, content in files.items()))
    else:
        mode = "w:gz" if kind == "tar.gz" else "w"
        tar_of(archive, *((member(name), content) for name, content in files.items()), mode=mode)
    splits = open_data(archive)
    assert (len(splits.train), len(splits.val)) == (6, 4)
    assert np.array_equal(splits.train.read(4), picture(1))
    (unread,) = (tmp_path / "cache").rglob("README.md")
    assert unread.stat().st_size == 0, "only its name is there, to be counted"
    assert splits.notes == ("1 of 11 files are not read: 1 .md (no pictures), such as README.md",)
    assert open_data(archive).train.fingerprint() == splits.train.fingerprint()  # unpacked once, used twice
