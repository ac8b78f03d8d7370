"""YAML from elsewhere as plain values: the one way in which YAML is read here.

Only scalars, lists and mappings with each key once. Aliases can expand without bound and are refused. Numbers of very
many digits take quadratic time and are refused too.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from nearsight.text import printable
from nearsight.untrusted.limits import SETTINGS_BYTES, SETTINGS_DIGITS, SETTINGS_SCALAR

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _PlainLoader(yaml.SafeLoader):
    """Scalars, lists and mappings with each key once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: aliases are not read")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            limit = SETTINGS_DIGITS if node.tag in _NUMBERS else SETTINGS_SCALAR
            if len(node.value) > limit:
                kind = "number" if node.tag in _NUMBERS else "value"
                raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a {kind} of {len(node.value):,} characters")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key must be a word or a number")
            if key.value in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {printable(key.value)!r} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 3e-4 for a word because it has no point.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def plain_yaml(text: str) -> Any:
    """Text as plain values; a ``ValueError`` says in one line what else it is."""
    if len(text) > SETTINGS_BYTES:
        raise ValueError(f"it has {len(text):,} characters; at most {SETTINGS_BYTES:,} are read")
    try:
        return _PlainLoader(text).get_single_data()
    # A date that does not exist is a ValueError; of some that are none, and of nonsense for a number, PyYAML makes
    # errors of other types.
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            raise ValueError(f"line {error.problem_mark.line + 1}: {error.problem}") from error
        raise ValueError(printable(" ".join(str(error).split()) or type(error).__name__, 400)) from error
