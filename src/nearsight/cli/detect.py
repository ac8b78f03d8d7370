"""`nearsight detect …` is gone: it says what to type instead."""

import shlex

from nearsight.cli.words import Raw

VERBS = ("train", "eval", "predict", "demo")


def detect(*words: Raw) -> int:
    """Name the verb that does it for every task."""
    if not words or words[0] not in VERBS:
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
