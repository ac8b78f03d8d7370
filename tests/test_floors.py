"""The oldest versions that are allowed are safe ones: a floor below a known hole lets a stranger's file through it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

from packaging.requirements import Requirement
from packaging.version import Version

SCRIPT = Path(__file__).parents[1] / "scripts" / "oldest_versions.py"
spec = importlib.util.spec_from_file_location("oldest_versions", SCRIPT)
assert spec is not None
assert spec.loader is not None
oldest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oldest)

# What reads a stranger's bytes or answers strangers, and the first version without the holes that are known.
SAFE = {
    "torch": "2.11",  # 2.10 and older: PYSEC-2026-139, unpickling in weights
    "timm": "1.0.26",  # older ones unpickle `checkpoint_path` with everything that is in it
    "pillow": "13",  # 12 and older: CVE-2026-112403, a heap overflow when a JPEG is decoded
    "pyyaml": "6",
    "pyarrow": "23.0.1",  # CVE-2026-25087 in its C++ library
    "starlette": "1.3.1",  # CVE-2026-48710, CVE-2026-54282: the host of a request; CVE-2025-62727: ranges of a file
    "h11": "0.16",  # CVE-2025-43859: bodies in pieces whose ends are not checked
}


def _floors() -> dict[str, str]:
    words = oldest.floors(oldest.requirements(["parquet", "explorer", "coco"]))
    return dict(word.split("==") for word in words)


def test_every_dependency_has_a_floor():
    assert _floors().keys() >= {"torch", "timm", "numpy", "huggingface_hub", "pyarrow", "fastapi", "uvicorn"}


@pytest.mark.parametrize("name", SAFE)
def test_floors_are_safe(name):
    assert Version(_floors()[name]) >= Version(SAFE[name])


def test_a_dependency_without_a_floor_is_an_error():
    with pytest.raises(ValueError, match="anything<3 has no lower bound"):
        list(oldest.floors([Requirement("anything<3")]))
