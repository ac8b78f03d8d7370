"""Nothing of a run is opened through a link: a stranger's run cannot reach files of whoever opens it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from strangers import make_run
from verbs import nearsight

from nearsight.analysis.figures.training import read_curves
from nearsight.engine.trackers import TensorBoardTracker
from nearsight.reports.compare import compare_runs
from nearsight.runs.checkpoint import CheckpointStore
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder, class_names

LINK = "is a link, and nothing of a run is opened through a link"
_SHORT = {"epochs": 4.0, "save_every": 5}


@pytest.fixture
def mine(tmp_path) -> Path:
    """A folder of the one who opens the run."""
    folder = tmp_path / "mine"
    (folder / "step-00000009.tmp-1").mkdir(parents=True)
    (folder / "step-00000009.tmp-1" / "thesis.tex").write_text("precious")
    (folder / "notes.tmp-2").write_text("precious")
    (folder / "letter.txt").write_text("precious")
    return folder


def _content(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def _stopped(zygote, run: Path) -> None:
    assert zygote.run(run, recipe=_SHORT, stop_at=13).code == 75


def _refused(zygote, run: Path) -> str:
    ended = zygote.run(run, recipe=_SHORT)
    assert ended.code in (2, 74), ended.text
    assert "Traceback" not in ended.text
    return ended.text


def test_the_lock_is_not_written_through_a_link(zygote, tmp_path, mine):
    run = tmp_path / "run"
    _stopped(zygote, run)
    before = _content(mine)
    for make in (os.symlink, os.link):
        (run / "run.lock").unlink()
        make(mine / "letter.txt", run / "run.lock")
        words = _refused(zygote, run)
        assert f"{run / 'run.lock'} is a" in words
        assert "link" in words
        assert _content(mine) == before


def test_a_lock_that_is_a_pipe_is_waited_for_by_nobody(zygote, tmp_path):
    run = tmp_path / "run"
    _stopped(zygote, run)
    (run / "run.lock").unlink()
    os.mkfifo(run / "run.lock")
    assert "a pipe, a socket or a device" in _refused(zygote, run)


def test_checkpoints_are_not_removed_or_written_through_a_link(zygote, tmp_path, mine):
    run = tmp_path / "run"
    _stopped(zygote, run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(mine)
    before = _content(mine)
    assert LINK in _refused(zygote, run)
    assert _content(mine) == before


def test_links_among_the_checkpoints_are_removed_themselves(tmp_path, mine):
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    before = _content(mine)
    store.folder.mkdir()
    for name in ("step-00000001", "step-00000002.tmp-7", "step-00000009.damaged", "step-00000005"):
        (store.folder / name).symlink_to(mine)
    store.remove_leftovers()
    store.save(5, {}, {})
    store.save(9, {}, {})
    store.set_aside_after(5)
    assert _content(mine) == before
    assert not [path for path in store.folder.iterdir() if path.is_symlink()]


def _linked(path: Path, place: Path) -> None:
    """Move a file or folder elsewhere, and leave a link to it."""
    shutil.move(path, place)
    path.symlink_to(place)


def _predict(run: Path) -> None:
    Image.new("RGB", (40, 30), "red").save(run.parent / "red.png")
    nearsight("predict", run, run.parent / "red.png")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.yaml", lambda run: RunFolder(run).recipe()),
        ("config.yaml", _predict),
        ("classes.txt", class_names),
        ("data.json", lambda run: RunFolder(run).was_trained_on({})),
        ("done.json", lambda run: compare_runs([run, run.parent / "other"])),
        ("metrics.jsonl", read_curves),
        ("checkpoints", lambda run: RunFolder(run).selected_weights()),
        ("tensorboard", TensorBoardTracker),
    ],
)
def test_no_file_of_a_run_is_read_through_a_link(name, read, tmp_path):
    run = make_run(tmp_path / "run")
    make_run(tmp_path / "other")
    if name == "tensorboard":
        (run / name).mkdir()
    elif not (run / name).exists():
        (run / name).write_text("{}")
    _linked(run / name, tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=LINK):
        read(run)


@pytest.mark.parametrize("name", ["", "MANIFEST.json", "state.json", "model.safetensors"])
def test_no_part_of_a_checkpoint_is_read_through_a_link(name, tmp_path):
    run = make_run(tmp_path / "run")
    _linked(run / "checkpoints" / "step-00000004" / name, tmp_path / "elsewhere")
    with pytest.raises(DiskError, match=LINK):
        RunFolder(run).selected()


def test_the_pointer_is_not_read_through_a_link(tmp_path):
    run = make_run(tmp_path / "run")
    _linked(run / "checkpoints" / "best.json", tmp_path / "elsewhere")
    with pytest.raises(DiskError, match=LINK):
        RunFolder(run).selected()


def test_a_run_as_a_whole_may_be_a_link(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    assert RunFolder(tmp_path / "link").selected().step == 4
    assert RunFolder(tmp_path / "link").recipe().model == "convit_nano_32"
