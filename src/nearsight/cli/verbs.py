"""Every verb of `nearsight`, with its first line of help. None of them imports torch before it works."""

import shlex
from importlib.metadata import version
from typing import Any

from cyclopts import App

from nearsight.cli import bench, listing, training, using
from nearsight.cli.compare import compare
from nearsight.cli.convert import convert
from nearsight.cli.demo import demo
from nearsight.cli.explore import explore
from nearsight.cli.export import export
from nearsight.cli.inspect import inspect
from nearsight.cli.options import Raw
from nearsight.cli.reproduce import reproduce
from nearsight.text import typed

RAW: dict[str, Any] = {"help_flags": [], "version_flags": [], "end_of_options_delimiter": ""}
"""Of verbs whose options depend on the task: they parse their words, and print their help, themselves."""

app = App(
    name=typed(),
    help="Vision models that start near-sighted and learn how far to look.",
    version=lambda: version("nearsight"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `app.main` prints its own line
)
app.command(training.train, **RAW)
app.command(training.resume, **RAW)
app.command(using.evaluate, name="eval", **RAW)
app.command(using.predict, **RAW)
for _verb in (compare, inspect, explore, convert, export, listing.recipes, listing.models, reproduce, demo):
    app.command(_verb)
_bench = App(name="bench", help="Measure layers or models against their peers, side by side.")
_bench.command(bench.layers)
_bench.command(bench.models)
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
            new += [f"--{field.replace('_', '-')}", _renamed(value) if field == "model_options" else value]
        else:
            new.append("--out" if verb == "demo" and word == "--run" else word)
    raise ValueError(f"`nearsight detect {verb}` is gone; use: nearsight {shlex.join(new)}")


def _renamed(options: str) -> str:
    """A detector's model options as they were written, under the names that they have now."""
    from yaml import safe_dump

    from nearsight.tasks import task_kind
    from nearsight.untrusted.plain_yaml import plain_yaml

    kind = task_kind("detection")
    fields = kind.recipes[kind.default_recipe].updated({"model_options": plain_yaml(options)})
    return safe_dump(fields["model_options"], default_flow_style=True, sort_keys=False).strip()
