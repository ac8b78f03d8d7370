"""A number is about the weights it names: those of the selected step, verified, or there is no number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from strangers import make_run
from verbs import nearsight

from nearsight.explorer.sources import open_source
from nearsight.models import create_model
from nearsight.reports.compare import compare_runs
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.weights import read_weights

NO_FIGURE = "the selected weights of .* cannot be used"


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _damage(run: Path, how: str, step: int) -> None:
    checkpoint = run / "checkpoints" / f"step-{step:08d}"
    if how == "gone":
        shutil.rmtree(checkpoint)
    elif how == "pointer of another step":
        path = run / "checkpoints" / "best.json"
        path.write_text(path.read_text().replace("00000004", "00000008").replace("4", "8"))
    elif how == "half a pointer":
        (run / "checkpoints" / "best.json").write_text('{"step": 8, "checkpoint": "step-00000004"}')
    else:
        _flip_a_byte(checkpoint / f"{how}.safetensors")


DAMAGES = ("model", "gone", "pointer of another step", "half a pointer")


@pytest.mark.parametrize("how", DAMAGES)
def test_no_other_weights_take_the_place_of_those_selected(how, tmp_path):
    run = make_run(tmp_path / "run", steps=(4, 8))
    assert RunFolder(run).selected().step == 4
    _damage(run, how, 4)
    with pytest.raises(DiskError, match=NO_FIGURE):
        RunFolder(run).selected()
    with pytest.raises(ValueError, match=NO_FIGURE):
        read_weights(run)  # a teacher's, and those that another run starts from


@pytest.mark.parametrize("how", ["model", "gone"])
def test_predict_eval_and_pages_refuse(how, tmp_path, capsys):
    run = make_run(tmp_path / "run", steps=(4, 8))
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    _damage(run, how, 4)
    for words in (["predict", run, tmp_path / "red.png", "--json"], ["inspect", run]):
        with pytest.raises((ValueError, SystemExit)) as caught:
            nearsight(*words)
        said = capsys.readouterr()
        assert "the selected weights of" in f"{caught.value}{said.err}"
        assert said.out == ""
    with pytest.raises(ValueError, match=NO_FIGURE):
        open_source(str(run)).load()


def test_without_a_pointer_the_state_says_what_was_selected(tmp_path):
    run = make_run(tmp_path / "run", steps=(4, 8))
    (run / "checkpoints" / "best.json").unlink()
    assert RunFolder(run).selected().step == 4
    _damage(run, "model", 4)
    with pytest.raises(DiskError, match=NO_FIGURE):
        RunFolder(run).selected()


def test_weights_that_are_missing_from_the_selected_checkpoint_are_not_replaced_by_others(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    best = {"step": 3, "value": 1.0, "weights": "ema"}
    store.save(3, {"model": {"w": torch.ones(1)}}, {"best": best})
    store.point("best", 3)
    with pytest.raises(DiskError, match="does not say which weights"):
        RunFolder(tmp_path / "run").selected()


def test_the_page_shows_the_averaged_weights_where_those_were_selected(tmp_path):
    run = make_run(tmp_path / "run")
    store = RunFolder(run).checkpoints()
    raw, average = (create_model("convit_nano_32", num_classes=3).state_dict() for _ in range(2))
    store.save(6, {"model": raw, "ema": average}, {"best": {"step": 6, "value": 1.0, "weights": "ema"}})
    store.point("best", 6)
    source = open_source(str(run))
    for step in (None, source.selected_step):
        assert torch.equal(source.load(step).head.weight, average["head.weight"])


def test_a_damaged_pointer_does_not_let_the_selected_weights_be_pruned(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    best = {"step": 1, "value": 1.0, "weights": "model"}
    for step in (1, 2, 3):
        store.save(step, {"model": {"w": torch.tensor([float(step)])}}, {"best": best})
        if step == 1:
            store.point("best", 1)
            (store.folder / "best.json").write_text("{")
    assert store.steps() == [1, 3]


def test_compare_says_whose_weights_are_lost(tmp_path):
    runs = [make_run(tmp_path / name, steps=(4, 8), seed=seed) for seed, name in enumerate(("one", "two"))]
    for run in runs:
        done = {"steps": 8, "selected": {"step": 4, "value": 50.0, "weights": "model"}, "test": {"top1": 40.0}}
        (run / "done.json").write_text(json.dumps(done))
    assert compare_runs(runs).notes == ()
    _damage(runs[1], "model", 4)
    (note,) = compare_runs(runs).notes
    assert note.startswith(f"{runs[1]}: its figures are as they were measured at its end, of weights that are lost")


def _selected_step(run: Path) -> int:
    return json.loads((run / "checkpoints" / "best.json").read_text())["step"]


# With select=best and few evaluations the best step is known: it is that of the evaluation before the last checkpoint.
_STOPPED = {"recipe": {"eval_every": 5.0, "save_every": 20, "keep": 1}, "stop_at": 137}


@pytest.mark.parametrize("how", ["model", "gone"])
def test_a_run_whose_selected_weights_are_lost_does_not_go_on_as_if_nothing_were(how, zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, **_STOPPED).code == 75
    best = _selected_step(run)
    assert best < 137
    _damage(run, how, best)
    settings = _STOPPED["recipe"]
    ended = zygote.run(run, recipe=settings)
    assert ended.code == 74, ended.text
    assert f"the weights that were selected at step {best} are lost" in ended.text
    assert "Traceback" not in ended.text
    ended = zygote.run(run, recipe=settings, override=True)
    assert ended.code == 0, ended.text
    assert "weights are selected anew from step 138 on" in ended.text
    done = json.loads((run / "done.json").read_text())
    assert done["selected"]["step"] > 138
    assert RunFolder(run).selected().step == done["selected"]["step"]


def test_a_finished_run_whose_selected_weights_are_lost_says_so(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, recipe={"epochs": 4.0}).code == 0
    assert zygote.run(run, recipe={"epochs": 4.0}).code == 0
    _damage(run, "gone", _selected_step(run))
    for _ in range(2):
        ended = zygote.run(run, recipe={"epochs": 4.0})
        assert ended.code == 74, ended.text
        assert "Traceback" not in ended.text
