"""Opening a run folder: a new one is filled with its settings, an old one is continued only as the same experiment."""

from __future__ import annotations

import os
from typing import Any

import torch

from nearsight.train.environment import describe_environment
from nearsight.train.exits import DiskError
from nearsight.train.recipe import Recipe, change_rule, differences
from nearsight.train.recipe_file import freeze, thaw
from nearsight.train.runfolder import CONFIG, RunFolder
from nearsight.train.task import Task

_IDENTITY = "data.json"
_OWN_FILES = ("run.lock", _IDENTITY, "env.json")


def open_run(run: RunFolder, recipe: Recipe, task: Task, device: torch.device, *, override: bool = False) -> bool:
    """Make or check the folder of a run, whose lock is held. True when it holds a run to be continued.

    Nothing is written when the settings or the data differ in a way that resuming does not allow (``ValueError``).
    """
    continuing = run.has_config
    foreign = [] if continuing else [entry.name for entry in run.path.iterdir() if entry.name not in _OWN_FILES]
    if set(foreign) - set(task.files()):
        raise ValueError(f"{run.path} holds other files ({foreign[0]}) and no run; choose another --run")
    if continuing:
        check_same_experiment(thaw(run.path / CONFIG), recipe, override=override)
        _check_same_data(run.read_json(_IDENTITY), task.fingerprint())
    if not os.access(run.path, os.W_OK):
        raise DiskError(f"{run.path} is not writable; choose another folder with --run")
    for name, text in task.files().items():
        run.write_text(name, text)
    run.write_json(_IDENTITY, task.fingerprint())
    run.write_json("env.json", describe_environment(device))
    # Last: a folder with a config is complete, one without is filled anew.
    run.write_text(CONFIG, freeze(recipe))
    return continuing


def check_same_experiment(old: Recipe, new: Recipe, *, override: bool) -> None:
    """Refuse to continue ``old`` as ``new`` where the difference would change what the run means."""
    changed = differences(old, new)
    foreign = {name: values for name, values in changed.items() if change_rule(name) == "never"}
    if foreign:
        raise ValueError(f"this folder holds another experiment: {_listed(foreign)}. Choose another --run")
    unasked = {name: values for name, values in changed.items() if change_rule(name) == "override"}
    if unasked and not override:
        raise ValueError(f"the run was started with other settings: {_listed(unasked)}. Add --override to change them")


def _check_same_data(old: dict[str, Any] | None, new: dict[str, Any]) -> None:
    changed = {name: ((old or {}).get(name), value) for name, value in new.items() if (old or {}).get(name) != value}
    if old is not None and changed:
        raise ValueError(f"the data changed since the run was started: {_listed(changed)}. Start a new run")


def _listed(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} was {old!r} and is now {new!r}" for name, (old, new) in changed.items())
