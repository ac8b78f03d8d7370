"""Several processes: the samples of one process, its losses within float noise, and a life after a killed rank
(F11–F14)."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import HERE, outcome, training_environment
from toy import toy_recipe

from nearsight.engine import distributed
from nearsight.engine.data import cut_batch
from nearsight.engine.distributed import World

RECIPE = {"drop_path": 0.0, "epochs": 10.0, "save_every": 8}


def _losses(run):
    return {line["step"]: line["loss"] for line in outcome(run)[1] if line["kind"] == "train"}


@pytest.fixture(scope="module")
def alone(zygote, tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    assert zygote.run(run, recipe=RECIPE).code == 0
    return run


def _run_ranks(zygote, run, size, changes=None, **spec):
    """As torchrun would start them, without its agent and its imports."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "t"}
    recipe = {**RECIPE, **(changes or {})}
    children = []
    for rank in range(size):
        environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        output = f"{run}.rank{rank}.out"
        children.append(zygote.start(run, output=output, environment=environment, recipe=recipe, **spec))
    return [child.end() for child in children]


def test_two_processes_give_the_curve_of_one(zygote, alone, tmp_path):
    run = tmp_path / "run"
    ended = _run_ranks(zygote, run, 2, changes={"report": True})
    assert [one.code for one in ended] == [0, 0], ended
    assert "shared by 1<" in (run / "report.html").read_text()  # pages are made by one process
    assert json.loads((run / "done.json").read_text())["test"]["gathered"] == 21
    assert json.loads((alone / "done.json").read_text())["test"]["gathered"] == 1
    losses, expected = _losses(run), _losses(alone)
    assert list(losses) == list(range(1, 61))
    assert list(losses.values()) == pytest.approx(list(expected.values()), abs=1e-5)


def test_the_number_of_processes_may_change_between_restarts(zygote, alone, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, recipe=RECIPE, stop_at=17).code == 75
    assert [one.code for one in _run_ranks(zygote, run, 2, stop_at=40)] == [75, 75]
    assert zygote.run(run, recipe=RECIPE).code == 0
    losses = _losses(run)
    assert list(losses) == list(range(1, 61))
    assert list(losses.values()) == pytest.approx(list(_losses(alone).values()), abs=1e-4)


def test_sharded_parameters_give_the_curve_of_one_process(zygote, alone, tmp_path):
    run = tmp_path / "run"
    assert [one.code for one in _run_ranks(zygote, run, 2, stop_at=25, changes={"fsdp": True})] == [75, 75]
    ended = _run_ranks(zygote, run, 2, changes={"fsdp": True})
    assert [one.code for one in ended] == [0, 0], ended
    losses = _losses(run)
    assert list(losses) == list(range(1, 61))
    assert list(losses.values()) == pytest.approx(list(_losses(alone).values()), abs=1e-4)


def test_one_signalled_rank_stops_all(zygote, tmp_path):
    run = tmp_path / "run"
    ended = _run_ranks(zygote, run, 2, slow=0.01, stop_at=12)
    assert [one.code for one in ended] == [75, 75], ended
    assert json.loads((run / "checkpoints" / "last.json").read_text())["step"] == 13


def test_a_killed_rank_is_restarted_by_torchrun(alone, tmp_path):
    run = tmp_path / "run"
    spec = {"run": str(run), "recipe": RECIPE, "die_once_at": 29, "die_rank": 1}
    launch = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "--monitor-interval", "0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launch, str(HERE / "faults.py"), json.dumps(spec)],
        env=training_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run.died").exists()
    assert "resumed after step 24 of 60" in done.stdout
    losses = _losses(run)
    assert list(losses) == list(range(1, 61))
    assert list(losses.values()) == pytest.approx(list(_losses(alone).values()), abs=1e-5)


def test_a_batch_that_cannot_be_shared_lists_what_fits():
    with pytest.raises(
        ValueError, match=r"batch of 16 cannot be shared by 3 processes; use --batch 18, .*fits: 1, 2, 4, 8, 16"
    ):
        cut_batch(toy_recipe(), World(0, 3), 1)
    with pytest.raises(ValueError, match=r"batch of 64 .* in groups of 16, .*; use --batch 128, .*fits: 1, 2, 4$"):
        cut_batch(toy_recipe(batch=64), World(0, 8), 16)
    assert cut_batch(toy_recipe(batch=64, micro_batch=8), World(0, 2), 4) == (8, 4)
    with pytest.raises(ValueError, match="micro_batch 64 does not fit the 32 images"):
        cut_batch(toy_recipe(batch=64, micro_batch=64), World(0, 2), 4)


@pytest.mark.parametrize("fails", [False, True])
def test_others_wait_for_the_main_process_however_long_it_takes(monkeypatch, fails):
    """Reading a large data set once takes longer than a collective waits."""
    sent: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(distributed, "_HEARTBEAT", 0.01)
    monkeypatch.setattr(
        World, "broadcast", lambda world, value: (sent.put(value), value)[1] if world.is_main else sent.get(timeout=60)
    )

    def work() -> str:
        time.sleep(0.1)
        if fails:
            raise ValueError("no such folder")
        return "read"

    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(World(rank, 2).of_main, work) for rank in (0, 1))
        assert second.result() is None
        if fails:
            with pytest.raises(ValueError, match="no such folder"):
                first.result()
        else:
            assert first.result() == "read"
    assert World().of_main(lambda: 7) == 7
