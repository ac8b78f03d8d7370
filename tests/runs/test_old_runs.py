"""Runs of earlier versions: their folders still evaluate, predict and resume to the result they would have had.

`old_runs/half` is a run of commit 9136cb8 that a signal stopped after 8 of its 16 steps, on `old_runs/data.npz`;
`old_runs/end` is where that version took it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from processes import TIMING
from safetensors.torch import load_file

from nearsight.engine.training import train
from nearsight.nn import LocalSelfAttention2d
from nearsight.runs.folder import RunFolder
from nearsight.tasks import task_kind

OLD = Path(__file__).parent / "old_runs"
DATA = str(OLD / "data.npz")


@pytest.fixture
def half(tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(OLD / "half", tmp_path / "run"))


def _records(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def _assert_near(found, expected) -> None:
    """Today's records have what the old ones have, and may say more. Sums are taken in another order than then."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() >= other.keys()
        assert one["kind"] == other["kind"]
        for name in other.keys() - {"kind"}:
            torch.testing.assert_close(torch.tensor(one[name]), torch.tensor(other[name]), atol=1e-4, rtol=1e-4)


def test_an_old_run_is_resumed_to_its_old_result(half):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        summary = train(half.recipe().with_changes(data=DATA), half)
    finally:
        torch.set_num_threads(threads)
    expected = json.loads((OLD / "end" / "done.json").read_text())
    last = half.checkpoints().load_named("last").tensors
    weights = {name: load_file(OLD / "end" / f"{name}.safetensors") for name in ("model", "ema")}
    assert summary["selected"]["step"] == expected["selected"]["step"]
    assert summary["parameters"] == expected["parameters"]
    assert {name: summary["test"][name] for name in expected["test"]} == pytest.approx(expected["test"], rel=1e-4)
    _assert_near(_records(half.path), _records(OLD / "end"))
    for name, tensors in weights.items():
        torch.testing.assert_close(last[name], tensors, atol=1e-4, rtol=1e-4)


def test_an_old_run_is_evaluated(half):
    logged = next(record for record in reversed(_records(OLD / "half")) if record["kind"] == "eval")
    found = task_kind("classification").evaluate(half.path, DATA, split="val", device="cpu")
    best = half.checkpoints().load_named("best").state["best"]
    prefix = "ema_val_" if best["weights"] == "ema" else "val_"
    assert best["step"] == logged["step"]
    old = {name.removeprefix(prefix): value for name, value in logged.items() if name.startswith(prefix)}
    assert old
    assert {name: found.values[name] for name in old} == pytest.approx(old, rel=1e-4)


def test_an_old_run_predicts(half, tmp_path):
    from PIL import Image

    Image.new("RGB", (9, 9), (200, 30, 30)).save(tmp_path / "red.png")
    kind = task_kind("classification")
    (found,) = kind.load(half.path, device="cpu").predict([tmp_path / "red.png"], kind.predict_options())
    assert not found.problem
    assert set(found.record["classes"]) == {"0", "1", "2"}


def test_an_old_detectors_settings_make_the_same_model():
    """Its options of local attention have had other names: `attention` was that of pyramid and heads."""
    recipe = RunFolder(OLD / "detector").recipe()
    model = task_kind("detection").open_task(recipe).build_model()
    weights = model.state_dict()
    listed = "\n".join(f"{name} {tuple(value.shape)}" for name, value in sorted(weights.items()))
    assert len(weights) == 165
    digest = hashlib.sha256(listed.encode()).hexdigest()
    assert digest == "0fe43d5e93383aff10829b06b26757da16784fa012d24c2d07a45ec9af3212a3"
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LocalSelfAttention2d)}
    borders = {(name.startswith("backbone."), layer.border) for name, layer in layers.items()}
    assert borders == {(True, "mask"), (False, "zeros")}
