"""Every verb of `nearsight`. They are loaded when called, so that `nearsight --help` answers at once."""

import shlex
from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import App, Parameter

app = App(
    name="nearsight",
    help="Vision models that start near-sighted and learn how far to look.",
    version=lambda: version("nearsight"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `app.main` prints its own line
)
VERBS = (
    ("train", "training:train", "Train a model on images with classes or with boxes."),
    ("resume", "training:resume", "Go on with a run that was stopped, killed or interrupted."),
    ("eval", "using:evaluate", "Measure a run's model on a dataset."),
    ("predict", "using:predict", "Classify pictures, or find objects in them."),
    ("compare", "compare:compare", "Compare runs: mean and spread over seeds, and whether a difference is real."),
    ("inspect", "inspect:inspect", "See where heads look: locality, gates, and the papers' figures."),
    ("explore", "explore:explore", "Click through attention maps in a web page."),
    ("recipes", "listing:recipes", "Show what the named recipes set, side by side."),
    ("models", "listing:models", "List every model with its cost, beside what its paper reports."),
    ("demo", "demo:demo", "Train a small ConViT and its plain twin on real pictures, or a small detector."),
)
Raw = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
"""A word that is passed on as it is."""
RAW: dict[str, Any] = {"help_flags": [], "version_flags": [], "end_of_options_delimiter": ""}
"""Of verbs whose options depend on the task: they parse their words, and print their help, themselves."""
for _verb, _place, _what in VERBS:
    _raw = RAW if _verb in ("train", "resume", "eval", "predict") else {}
    app.command(f"nearsight.cli.{_place}", name=_verb, help=_what, **_raw)
_bench = App(name="bench", help="Measure layers or models against their peers, side by side.")
_bench.command("nearsight.cli.bench:layers", name="layers", help="Local attention against its peers, stage by stage.")
_bench.command("nearsight.cli.bench:models", name="models", help="Whole models against their peers.")
app.command(_bench)


@app.command(name="detect", show=False, **RAW)
def detect(*words: Raw) -> int:
    """`nearsight detect …` is gone: name the verb that does it for every task."""
    if not words or words[0] not in ("train", "eval", "predict", "demo"):
        raise ValueError(
            "`nearsight detect` is gone: train, resume, eval and predict serve detection too, as in nearsight train "
            "BOXES; its demonstration is nearsight demo --task detection"
        )
    verb, *rest = words
    new = ["demo", "--task", "detection"] if verb == "demo" else [verb]
    while rest:
        word = rest.pop(0)
        field, equals, value = word.removeprefix("--set").lstrip("=").partition("=")
        if word == "--set" and rest:
            field, equals, value = rest.pop(0).partition("=")
        if word.startswith("--set") and equals:
            new += [f"--{field.replace('_', '-')}", value]
        else:
            new.append("--out" if verb == "demo" and word == "--run" else word)
    raise ValueError(f"`nearsight detect {verb}` is gone; use: nearsight {shlex.join(new)}")
