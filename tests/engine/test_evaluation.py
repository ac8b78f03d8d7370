"""What a task's evaluation yields, and what the engine makes of it."""

from __future__ import annotations

import shutil
from typing import ClassVar

import numpy as np
import pytest
import torch
from toy import ToyTask, toy_recipe

from nearsight.engine.callbacks import Callback
from nearsight.engine.training import train
from nearsight.runs.folder import RunFolder


class Watched(ToyTask):
    """Evaluates to what `found` holds."""

    found: ClassVar[dict] = {}

    def evaluate(self, model, split, context):
        yield from self.found.items()


def _watched(tmp_path, found, **changes):
    """The summary and the notes of two epochs whose evaluations find this."""
    notes: list[str] = []

    class Notes(Callback):
        def note(self, text):
            notes.append(text)

        def record(self, record):
            pass

        def close(self):
            pass

    Watched.found = found
    recipe = toy_recipe(epochs=2.0, eval_every=1.0, **changes)
    summary = train(recipe, RunFolder(tmp_path / "run"), open_task=Watched, callbacks=lambda trainer: [Notes()])
    return summary, notes


def test_a_value_that_selects_must_be_evaluated(tmp_path):
    with pytest.raises(ValueError, match="the task selects weights by 'score', and its evaluation has loss, recall"):
        _watched(tmp_path, {"loss": 1.0, "recall": 0.5})


def test_a_value_that_selects_and_is_not_finite_is_told(tmp_path):
    summary, notes = _watched(tmp_path, {"score": float("nan")}, ema=0.0)
    assert summary["selected"] is None
    assert [note for note in notes if note.startswith("warning: val_score is nan")]
    shutil.rmtree(tmp_path / "run")
    summary, notes = _watched(tmp_path, {"score": 1.0}, ema=0.0)
    assert summary["selected"]["value"] == 1.0
    assert not [note for note in notes if note.startswith("warning: val_score")]


def test_evaluated_values_may_be_tensors_of_one_number(tmp_path):
    summary, _ = _watched(tmp_path, {"score": torch.tensor(0.5), "count": np.float32(3)})
    assert summary["test"] == {"score": 0.5, "count": 3.0}
    assert {type(value) for value in summary["test"].values()} == {float}
    for odd, told in ((torch.zeros(2), r"a tensor of shape \[2\]"), ("high", "'high'")):
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(ValueError, match=f"the evaluated value 'odd' must be a number, got {told}"):
            _watched(tmp_path, {"score": 1.0, "odd": odd})
