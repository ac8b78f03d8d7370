"""Starting a run in a folder: a new one is recorded, an old one is continued only as the same experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nearsight.images.fingerprints import same_data
from nearsight.recipes.files import freeze
from nearsight.recipes.recipe import Recipe, differences
from nearsight.runs.environment import describe_environment
from nearsight.runs.exits import DiskError
from nearsight.runs.folder import RunFolder
from nearsight.runs.layout import CONFIG, DATA, DONE, ENVIRONMENT, LOCK, NOT_READ, TEACHER, WHOLE_TRAIN


@dataclass(frozen=True)
class DataRecord:
    """What a run keeps of its data: a fingerprint of each split, text files such as class names, by their names, and
    how many files were not read, by reason."""

    fingerprint: Mapping[str, Any]
    files: Mapping[str, str]
    not_read: Mapping[str, int]


def check_run(run: RunFolder, recipe: Recipe, data: DataRecord, *, total_steps: int, override: bool = False) -> bool:
    """Whether the folder, whose lock is held, has a run that ``recipe`` continues. Nothing is written.

    ``ValueError`` when settings or data differ in a way that resuming does not allow.
    """
    if not os.access(run.path, os.W_OK):
        raise DiskError(f"{run.path} is not writable; choose another folder with --run")
    if not run.has_config:
        foreign = [entry.name for entry in run.path.iterdir() if entry.name not in (LOCK, DATA, ENVIRONMENT)]
        if set(foreign) - set(data.files):
            raise ValueError(f"{run.path} holds other files ({foreign[0]}) and no run; choose another --run")
        return False
    old, identity = run.recipe(), run.read_json(DATA)
    if identity is not None:
        changed = _changed(identity, data.fingerprint)
        if changed == [TEACHER] and TEACHER not in differences(old, recipe):
            raise ValueError(
                "the weights of the teacher changed since the run was started. Start a new run, with another --run"
            )
        if set(changed) - {TEACHER}:
            # Another fraction, split or seed takes other images; where settings differ, they are the reason.
            check_same_experiment(old.with_changes(data=recipe.data), recipe, override=True)
            if changed == [WHOLE_TRAIN] and WHOLE_TRAIN not in identity:
                raise ValueError(
                    f"{run.path} counted epochs over the images that fraction {old.fraction:g} keeps, an older rule "
                    "with other updates in another order. Its weights can be used; to train, start a new run, with "
                    "another --run"
                )
            raise ValueError(
                f"the data changed since the run was started on {old.data}: {recipe.data} has other images or labels "
                f"in {', '.join(changed)}. Start a new run, with another --run"
            )
        old = old.with_changes(data=recipe.data)  # the same data, as its fingerprint has shown, may lie elsewhere
    late = {name: values for name, values in differences(old, recipe).items() if recipe.change_rule(name) == "override"}
    if late and finished_summary(run, total_steps) is not None:
        raise ValueError(
            f"this run is finished, and {_listed(late)}. Start a new run; --override --epochs makes this one longer"
        )
    check_same_experiment(old, recipe, override=override)
    return True


def _changed(identity: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which fingerprints differ; a teacher's is not in earlier records."""
    if TEACHER not in identity:
        now = {name: value for name, value in now.items() if name != TEACHER}
    return [name for name, value in now.items() if not same_data(identity.get(name), value)]


def finished_summary(run: RunFolder, total_steps: int) -> dict[str, Any] | None:
    """``done.json`` of a run that has taken all of its steps, or that patience ended."""
    done = run.read_json(DONE)
    if done is None or done.get("planned_steps", done.get("steps")) != total_steps:
        return None
    if "test" in done:
        done["test"] = {name: float(value) for name, value in done["test"].items()}
    return done


def record_run(run: RunFolder, recipe: Recipe, data: DataRecord, device: torch.device) -> None:
    """Write the files that define the run. The environments of earlier starts stay in env.json."""
    for name, text in data.files.items():
        run.write_text(name, text)
    run.write_json(DATA, {**data.fingerprint, NOT_READ: dict(data.not_read)})
    run.write_json(ENVIRONMENT, _with_earlier(run.read_json(ENVIRONMENT), describe_environment(device)))
    # Last: a folder with a config is complete, one without it is written again.
    run.write_text(CONFIG, freeze(recipe))


def _with_earlier(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    if old is None:
        return new
    earlier = old.pop("earlier", [])
    earlier = earlier if old == new else [*earlier, old]
    return {**new, "earlier": earlier} if earlier else new


def check_same_experiment(old: Recipe, new: Recipe, *, override: bool) -> None:
    """Refuse to continue ``old`` as ``new`` where the difference would change what the run means."""
    changed = differences(old, new)
    foreign = {name: values for name, values in changed.items() if old.change_rule(name) == "never"}
    if foreign:
        raise ValueError(f"this folder holds another experiment: {_listed(foreign)}. Choose another --run")
    unasked = {name: values for name, values in changed.items() if old.change_rule(name) == "override"}
    if unasked and not override:
        raise ValueError(f"the run was started with other settings: {_listed(unasked)}. Add --override to change them")


def _listed(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} was {old!r} and is now {new!r}" for name, (old, new) in changed.items())
