"""What was typed after a verb, looked at before it is parsed: which task it is for decides which options there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from nearsight.cli.options import option_names, switch_names
from nearsight.recipes.files import plain_yaml
from nearsight.tasks import TaskKind, task_kind, task_names

Raw = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
"""A word that is passed on as it is."""
_SWITCHES = {"help", "override", "json"}
_OPTIONS_OF = ("recipe", "eval_options", "predict_options")
"""Where a kind of task says which options it has."""
_MODEL_OPTIONS = "model-options"


@dataclass(frozen=True)
class Words:
    """The words of a call: names of options have dashes, and the arguments of a model stand apart."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    positional: str
    values: dict[str, str]
    model_options: dict[str, Any]


def read_words(given: Sequence[str]) -> Words:
    """Sort out what was typed. Knows which options take a value, but not whether a task has them."""
    kinds = all_kinds()
    switches = _SWITCHES | switch_names(getattr(kind, part) for kind in kinds for part in _OPTIONS_OF)
    kept: list[str] = []
    names: list[str] = []
    positional: list[str] = []
    values: dict[str, str] = {}
    model_options: dict[str, Any] = {}
    rest = list(given)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            kept += [word, *rest]
            break
        if not word.startswith("-") or word == "-":
            positional.append(word)
            kept.append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.lstrip("-") if not name.startswith("--") else name[2:]
        name, dot, path = name.partition(".")
        name = name.replace("_", "-")
        if name == "set":
            raise ValueError(f"--set is gone: every field of a recipe is an option of its own, {_example(value, rest)}")
        if name == _MODEL_OPTIONS:
            text = value if equals else _value_after(word, rest)
            _add_model_option(model_options, path.split(".") if dot else [], text)
            continue
        takes_value = word.startswith("--") and not equals and name not in switches
        names.append(name)
        kept.append(f"--{name}{dot}{path}{equals}{value}" if word.startswith("--") else word)
        if takes_value and rest:
            value = rest.pop(0)
            kept.append(value)
        values[name] = value
    return Words(tuple(kept), tuple(names), positional[0] if positional else "", values, model_options)


def call_verb(
    verb: str,
    usage: str,
    function: Any,
    options: type,
    words: Words,
    kinds: Sequence[TaskKind],
    part: str,
    help: str = "",
) -> int:
    """Parse the words for a function and call it; its parameter `options` gets an instance of the class of that name.

    The options are those of `part` of the kinds of task; one that only another kind has is refused by name.
    """
    _refuse_others(words.names, kinds, part)
    function.__annotations__["options"] = Annotated[options, Parameter(name="*")]
    function.__kwdefaults__["options"] = options()
    app = App(
        name=f"nearsight {verb}",
        help=help or None,  # else the function's docstring
        usage=f"Usage: nearsight {verb} {usage} [OPTIONS]\n",
        version_flags=[],
        group_commands=Group("Commands", show=False),  # no panel for --help alone
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.default(function)
    return app(list(words.words), exit_on_error=False)


def all_kinds() -> list[TaskKind]:
    return [task_kind(name) for name in task_names()]


def _refuse_others(names: Iterable[str], kinds: Sequence[TaskKind], part: str) -> None:
    """An option of another task is refused by name."""
    known = option_names(getattr(kind, part) for kind in kinds)
    for name in names:
        for other in all_kinds():
            if {name, name.removeprefix("no-")} & (option_names([getattr(other, part)]) - known):
                raise ValueError(f"--{name} is for {other.name}; {kinds[0].name} does not read it")


def _value_after(word: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ValueError(f"{word} needs a value, as in {word} 2")
    return rest.pop(0)


def _add_model_option(options: dict[str, Any], path: list[str], text: str) -> None:
    """`width 36`, `attention.start local`, or all of them as one mapping."""
    option = ".".join([f"--{_MODEL_OPTIONS}", *path])
    try:
        value = plain_yaml(text)
    except ValueError as error:
        raise ValueError(f"{option} {text!r} is not a plain value: {error}") from error
    names = [name.replace("-", "_") for name in path]
    if not names:
        if not isinstance(value, dict):
            raise ValueError(
                f"{option} {text!r} is no mapping; name an argument of the model, as in {option}.depth 4, or give "
                f"several, as in {option} '{{depth: 4, width: 36}}'"
            )
        options.update({str(name).replace("-", "_"): inner for name, inner in value.items()})
        return
    if not all(names):
        raise ValueError(f"{option}: the name of an argument is missing, as in --{_MODEL_OPTIONS}.depth 4")
    for name in names[:-1]:
        options = options.setdefault(name, {})
        if not isinstance(options, dict):
            raise ValueError(f"{option}: {name} was given a value of its own before")
    options[names[-1]] = value


def _example(value: str, rest: list[str]) -> str:
    field, equals, text = (value or (rest[0] if rest else "")).partition("=")
    return f"--{field.strip().replace('_', '-')} {text}" if equals else "such as --flip-vertical 0.5"
