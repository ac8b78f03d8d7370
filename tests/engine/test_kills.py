"""Killed at any instant, a run ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
from processes import assert_same_outcome, outcome


def test_same_seed_same_run(zygote, reference, tmp_path):
    assert zygote.run(tmp_path / "run").code == 0
    assert_same_outcome(tmp_path / "run", reference)
    hashes, log = outcome(reference)
    assert {"model.safetensors", "ema.safetensors", "optim.safetensors"} == set(hashes)
    assert [line["step"] for line in log if line["kind"] == "train"] == list(range(1, 201))


def test_another_seed_is_another_run(zygote, reference, tmp_path):
    assert zygote.run(tmp_path / "run", recipe={"seed": 1}).code == 0
    assert outcome(tmp_path / "run")[0] != outcome(reference)[0]


def test_killed_at_random_instants(zygote, reference, tmp_path):
    generator = random.Random(5)
    run, kills = tmp_path / "run", 0
    while True:
        child = zygote.start(run, slow=0.008)
        if kills < 6:
            child.wait_for("toy task")
            time.sleep(generator.uniform(0.0, 0.5))
            child.kill()
            kills += 1
        if (ended := child.end()).code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.text
    assert kills >= 3
    assert_same_outcome(run, reference)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("half of model.safetensors", 3),
        ("after optim.safetensors", 3),
        ("before rename", 3),
        ("after rename", 3),
        ("before pointer last.json", 3),
        ("before pointer best.json", 2),
        ("after prune rename", 2),
    ],
)
def test_killed_while_writing_a_checkpoint(zygote, reference, tmp_path, point, count):
    run = tmp_path / "run"
    assert zygote.run(run, kill_at=[point, count]).code == -signal.SIGKILL
    ended = zygote.run(run)
    assert ended.code == 0, ended.text
    assert "resumed after step" in ended.text
    assert_same_outcome(run, reference)


@pytest.mark.parametrize("cut", [1, 40, 5000])
def test_torn_log_is_repaired(zygote, reference, tmp_path, cut):
    run = tmp_path / "run"
    assert zygote.run(run, kill_at=["after rename", 5]).code == -signal.SIGKILL
    log = run / "metrics.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[: len(content) - cut] if cut < 5000 else content + b'{"kind": "tr')
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signal_saves_this_very_step(zygote, reference, tmp_path, number):
    run = tmp_path / "run"
    child = zygote.start(run, slow=0.005)
    child.wait_for("step 33\n")
    child.kill(number)
    ended = child.end()
    assert ended.code == 75, ended.text
    last_step = max(int(line.split()[1]) for line in ended.text.splitlines() if line.startswith("step "))
    assert json.loads((run / "checkpoints" / "last.json").read_text())["step"] == last_step
    assert zygote.run(run).code == 0
    assert_same_outcome(run, reference)


def test_second_interrupt_leaves_at_once(zygote, tmp_path):
    child = zygote.start(tmp_path / "run", slow=3.0)  # a step so slow that only the second signal can end it
    child.wait_for("toy task")
    time.sleep(0.3)
    child.kill(signal.SIGINT)
    time.sleep(0.1)
    began = time.monotonic()
    child.kill(signal.SIGINT)
    assert child.end().code == 130
    assert time.monotonic() - began < 2.5


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", _flip),
        ("optim.safetensors", _flip),
        ("state.json", _flip),
        ("MANIFEST.json", _flip),
        ("ema.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("metrics.jsonl", lambda path: path.write_bytes(b"")),
    ],
)
def test_bit_rot_falls_back(zygote, reference, tmp_path, name, damage):
    run = tmp_path / "run"
    assert zygote.run(run, kill_at=["after rename", 5]).code == -signal.SIGKILL
    newest = max(run.glob("checkpoints/step-*"))
    damage(newest / name)
    ended = zygote.run(run)
    assert ended.code == 0, ended.text
    assert "damaged checkpoint passed over" in ended.text
    assert name in ended.text
    assert_same_outcome(run, reference)


def test_all_checkpoints_damaged(zygote, tmp_path):
    run = tmp_path / "run"
    assert zygote.run(run, kill_at=["after rename", 5]).code == -signal.SIGKILL
    weights = sorted(run.glob("checkpoints/step-*/model.safetensors"))
    for path in weights:
        _flip(path)
    before = [path.read_bytes() for path in weights]
    ended = zygote.run(run)
    assert ended.code == 74
    assert "no readable checkpoint" in ended.text
    assert [path.read_bytes() for path in weights] == before
