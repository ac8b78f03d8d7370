"""Checkpoints, also from strangers: what is damaged is named, nothing is read outside of them."""

from __future__ import annotations

import json
import os

import pytest
import torch

from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError, NonFiniteError


def _store(tmp_path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, {"model": {"weight": torch.ones(4)}}, {"note": "x"}, {"metrics.jsonl": b"{}\n"})
    return store


def test_a_manifest_cannot_point_outside(tmp_path):
    store = _store(tmp_path)
    (tmp_path / "secret").write_text("secret")
    path = store.path(3) / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../secret"] = manifest["files"].pop("metrics.jsonl")
    path.write_text(json.dumps(manifest))
    with pytest.raises(DiskError, match="not a plain file name"):
        store.load(3)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 1, "files": {"a": 3}}', b"\xff", b'{"files": []}'])
def test_a_nonsense_manifest_is_refused(tmp_path, content):
    store = _store(tmp_path)
    (store.path(3) / "MANIFEST.json").write_bytes(content)
    with pytest.raises(DiskError):
        store.load(3)


def test_a_future_format_is_said_so(tmp_path):
    store = _store(tmp_path)
    path = store.path(3) / "MANIFEST.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(DiskError, match="format 9; this version reads format 1"):
        store.load(3)


def test_a_checkpoint_is_never_not_finite(tmp_path):
    store = _store(tmp_path)
    with pytest.raises(NonFiniteError, match="model: weight"):
        store.save(4, {"model": {"weight": torch.tensor([1.0, float("inf")])}}, {})
    assert store.steps() == [3]


def test_checkpoints_follow_the_umask_and_tied_weights_are_saved(tmp_path):
    old = os.umask(0o027)
    try:
        shared = torch.arange(6.0)
        store = CheckpointStore(tmp_path / "c")
        store.save(1, {"model": {"a": shared, "b": shared, "odd": shared.view(2, 3).T}}, {})
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in store.path(1).iterdir()} == {0o640}
    loaded = store.load(1).tensors["model"]
    assert torch.equal(loaded["a"], loaded["b"])
    assert torch.equal(loaded["odd"], shared.view(2, 3).T)


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    store = CheckpointStore(tmp_path / "c", keep=2)
    for step in (1, 2, 3, 4, 5):
        store.save(step, {"model": {"w": torch.tensor([float(step)])}}, {})
        if step == 2:
            store.point("best", 2)
    assert store.steps() == [2, 4, 5]
    assert store.load_named("best").tensors["model"]["w"].item() == 2
    assert store.pointed("last") == 5
