"""Parameters that several verbs share, and the options of a task, made from the fields of its dataclasses.

The command line is scanned before it is parsed, because the task decides which options there are.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from nearsight.tasks import TaskKind, all_kinds
from nearsight.text import typed, value_words
from nearsight.untrusted.plain_yaml import plain_yaml

Raw = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
"""A word that a verb parses itself."""
Run = Annotated[Path, Parameter(help="Folder of the run.")]
Device = Annotated[str, Parameter(help="cpu, cuda, mps; auto takes the best there is.")]
Json = Annotated[bool, Parameter(negative="", help="Print JSON.")]
Override = Annotated[
    bool,
    Parameter(
        negative="",
        help="Let a resumed run change settings that alter what is learned, such as lr, or go on without the weights "
        "that were selected, where they are lost.",
    ),
]
Show = Annotated[Literal["auto", "plain", "json", "quiet"], Parameter(help="How to report progress.")]
Weights = Annotated[
    str,
    Parameter(
        help="Weights for a model given by name: a .safetensors or .pth file under our names, timm's or the released "
        "ConViT's, a run, a hub folder, or published ones (timm:NAME, hub:OWNER/NAME, torchvision:NAME).",
        show_default=False,
    ),
]
Download = Annotated[
    bool, Parameter(negative="", help="Fetch published weights from the network; of `timm:NAME` its own.")
]

_NOT_OPTIONS = ("data", "task")
"""Fields that a verb has by other means."""
_AUTO_BATCH = (
    "; auto takes a smaller batch where there are fewer images, and halves the micro-batch when memory runs out"
)
_SWITCHES = {"help", "override", "json"}
_OPTIONS_OF = ("recipe", "eval_options", "predict_options")
"""Where a kind of task says which options it has."""
_MODEL_OPTIONS = "model-options"


@dataclass(frozen=True)
class Words:
    """The words of a call: names of options have dashes, and the arguments of a model stand apart."""

    words: list[str]
    positional: str
    """The first one that is neither an option nor its value."""
    values: dict[str, str]
    """Of each option, by its name without dashes in front; empty for a switch."""
    model_options: dict[str, Any]

    def changes(self, options: Any) -> dict[str, Any]:
        """The fields of a recipe that were set."""
        given = given_options(options)
        return {**given, "model_options": self.model_options} if self.model_options else given


def read_words(given: Sequence[str]) -> Words:
    """Sort out what was typed. Knows which options take a value, but not whether a task has them."""
    kinds = all_kinds()
    switches = _SWITCHES | switch_names(getattr(kind, part) for kind in kinds for part in _OPTIONS_OF)
    kept: list[str] = []
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
        kept.append(f"--{name}{dot}{path}{equals}{value}" if word.startswith("--") else word)
        if takes_value and rest:
            value = rest.pop(0)
            kept.append(value)
        values[name] = value
    return Words(kept, positional[0] if positional else "", values, model_options)


def call_verb(
    verb: str,
    usage: str,
    function: Any,
    words: Words,
    kinds: Sequence[TaskKind],
    part: str,
    values: Sequence[Any],
    help: str = "",
) -> int:
    """Parse the words for a function and call it; its parameter `options` has a field for each option.

    The options are those of `part` of the kinds of task, shown with `values`; another kind's are refused by name.
    """
    known = option_names(getattr(kind, part) for kind in kinds)
    for name in words.values:
        for other in all_kinds():
            if {name, name.removeprefix("no-")} & (option_names([getattr(other, part)]) - known):
                raise ValueError(f"--{name} is for {other.name}; {kinds[0].name} does not read it")
    options = option_class(*((getattr(kind, part), value) for kind, value in zip(kinds, values, strict=True)))
    function.__annotations__["options"] = Annotated[options, Parameter(name="*")]
    function.__kwdefaults__["options"] = options()
    app = App(
        name=typed(verb),
        help=help or None,  # else the function's docstring
        usage=f"Usage: {typed(verb, usage)} [OPTIONS]",
        version_flags=[],
        group_commands=Group("Commands", show=False),  # no panel for --help alone
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.default(function)
    return app(words.words, exit_on_error=False, print_error=False)


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
            raise ValueError(f"{option}: {name} was given a value already")
    options[names[-1]] = value


def _example(value: str, rest: list[str]) -> str:
    field, equals, text = (value or (rest[0] if rest else "")).partition("=")
    return f"--{field.strip().replace('_', '-')} {text}" if equals else "such as --flip-vertical 0.5"


def option_class(*sources: tuple[type, Any]) -> Any:
    """A parameter type with an option for every field of the (dataclass, instance) pairs.

    Each option that is not given is None; help shows the value that the field has in the instance, if there is one.
    Of fields of the same name the first one counts.
    """
    options: dict[str, tuple[str, Any, Any]] = {}
    for owner, values in sources:
        for field in _fields(owner):
            options.setdefault(field.name, _option(field, owner, values))
    made = dataclasses.make_dataclass("Options", options.values(), kw_only=True)
    made.__module__ = __name__  # made dynamically, it claims to be a built-in type, which cyclopts does not unfold
    return made


def given_options(options: Any) -> dict[str, Any]:
    """The fields that the command line set; ``--batch auto`` keeps the recipe's batch where it fits."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if given.get("batch") == "auto":
        del given["batch"]
        given["batch_auto"] = True
    return given


def option_names(owners: Iterable[type]) -> set[str]:
    """What the options of these dataclasses are called, without dashes in front."""
    return {field.name.replace("_", "-") for owner in owners for field in _fields(owner)}


def switch_names(owners: Iterable[type]) -> set[str]:
    """Those that take no value, in both of their forms."""
    switches = [field.name.replace("_", "-") for o in owners for field in _fields(o) if isinstance(field.default, bool)]
    return {*switches, *(f"no-{name}" for name in switches)}


def _fields(owner: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(owner) if field.name not in _NOT_OPTIONS]


def _option(field: dataclasses.Field, owner: type, values: Any) -> tuple[str, Any, Any]:
    help_text = field.metadata["help"] + (_AUTO_BATCH if field.name == "batch" else "")
    if field.metadata["choices"]:
        help_text += f" ({', '.join(field.metadata['choices'])})"
    default = "" if values is None else value_words(getattr(values, field.name))
    parameter = Parameter(
        help=help_text, group=_group_of(field.name, owner), show_default=(lambda _: default) if default else False
    )
    return field.name, Annotated[_type_of(field), parameter], dataclasses.field(default=None)


def _type_of(field: dataclasses.Field) -> Any:
    if field.name == "batch":
        return int | Literal["auto"] | None
    # A mapping is read from the words before they are parsed; here it is only told of.
    return (str if field.default is dataclasses.MISSING else type(field.default)) | None


def _group_of(name: str, owner: type) -> Group:
    """Options are listed under the sentence that describes the class they come from."""
    parts = [part for part in owner.__mro__ if name in inspect.get_annotations(part)]
    order = [part.__name__ for part in reversed(owner.__mro__)].index(parts[0].__name__)
    return Group((parts[0].__doc__ or "").split("\n")[0].rstrip("."), sort_key=order)
