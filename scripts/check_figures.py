"""Whether the figures of README, the changelog and the pages stand in `results/`.

    python scripts/check_figures.py            # prints what does not hold; exit code 1 if anything does not

Two rules, checked block by block (a paragraph, a list item or a table, together with the paragraph that introduces it):

1. A block with measured figures (`52.6 %`, `1.9×`, `3.6 ms`, `110 images/s`, `5.0 points`, but not `95 % interval`)
   names the file of `results/` that they come from, or says that they are counted, reported by a paper or analytic.
2. A comment after figures says where they stand, and they are compared, as far as they are printed:

       ConViT has 52.6 % <!-- results/clothing_split.json: rows["ConViT"]["top1"] -->

   Several expressions, separated by semicolons, belong to as many numbers before the comment. An expression is a path
   into the JSON, with `min(…)`, `max(…)`, `len(…)` and + - * / between paths and numbers.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GENERATED = {"docs/reproduction.md"}  # by `nearsight reproduce --write`, and compared by a test of its own
MEASURED = re.compile(r"\d\s?(?:%(?!\s+intervals?\b)|×(?!\s?\d)|ms\b|µs\b|images/s|points\b)")
SOURCE = re.compile(
    r"results/[\w./-]*\w|\b(?:counted|reported|reports?|analytic|analytically|the paper'?s?)\b", re.IGNORECASE
)
COMMENT = re.compile(r"<!--\s*(results/[\w./-]+\.json):\s*(.*?)\s*-->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[−-]?\d[\d ]*(?:\.\d+)?")


@dataclass(frozen=True)
class Block:
    """Lines that belong together, and where they start."""

    page: str
    line: int
    text: str


def pages(root: Path) -> list[Path]:
    listed = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("**/*.md"))]
    return [page for page in listed if page.relative_to(root).as_posix() not in GENERATED]


def blocks(page: Path, root: Path) -> Iterator[Block]:
    """Paragraphs, list items and tables; code is left out, and so is what a program writes between two marks."""
    name = page.relative_to(root).as_posix()
    text = re.sub(r"^(```|~~~).*?^\1", _emptied, page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^<!-- (\w+) -->$.*?^<!-- end of \1 -->$", _emptied, text, flags=re.MULTILINE | re.DOTALL)
    lines = text.split("\n")
    start = 0
    for number, line in enumerate([*lines, ""]):
        ends = not line.strip() or line.startswith("#")
        if (ends or re.match(r"\s*(?:[-*]|\d+\.) ", line)) and number > start:
            if any(one.strip() for one in lines[start:number]):
                yield Block(name, start + 1, "\n".join(lines[start:number]))
            start = number
        if ends:
            start = number + 1


def _emptied(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def faults(root: Path = ROOT) -> list[str]:
    found = []
    for page in pages(root):
        listed = list(blocks(page, root))
        for before, block in zip([None, *listed], listed, strict=False):
            introduced = before.text if before and block.text.lstrip().startswith(("|", "- ", "* ")) else ""
            shown = COMMENT.sub("", block.text)
            if MEASURED.search(shown) and not SOURCE.search(introduced + block.text):
                found.append(f"{block.page}:{block.line}: no file of results/ is named for {_excerpt(shown)}")
            found += [f"{block.page}:{block.line}: {fault}" for fault in _compared(block.text, root)]
    return found


def _excerpt(text: str) -> str:
    match = MEASURED.search(text)
    assert match is not None
    return "…" + " ".join(text[max(0, match.start() - 40) : match.end() + 20].split()) + "…"


def _compared(text: str, root: Path) -> Iterator[str]:
    """What differs between the figures before each comment and the file that it names."""
    since = 0
    for comment in COMMENT.finditer(text):
        path, expressions = comment.group(1), comment.group(2).split(";")
        printed = NUMBER.findall(text[since : comment.start()])[-len(expressions) :]
        since = comment.end()
        if not (root / path).is_file():
            yield f"{path} is not there"
            continue
        if len(printed) < len(expressions):
            yield f"{len(expressions)} expressions for {len(printed)} figures"
            continue
        content = json.loads((root / path).read_text())
        for figure, expression in zip(printed, expressions, strict=True):
            try:
                value = evaluate(expression, content)
            except (KeyError, IndexError, TypeError, SyntaxError, ValueError) as error:
                yield f"{path}: {expression.strip()!r} cannot be read ({type(error).__name__}: {error})"
                continue
            if not same(figure, value):
                yield f"{figure} is printed, {path} has {value:g} ({expression.strip()})"


def same(figure: str, value: float) -> bool:
    """Whether a value rounds to the figure that is printed."""
    plain = figure.replace(" ", "").replace("−", "-")
    digits = len(plain.partition(".")[2])
    return abs(float(plain) - value) <= 0.5 * 10**-digits * (1 + 1e-9)


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "len": len}


def evaluate(expression: str, content: Any) -> Any:
    """The value of a path into JSON, or of arithmetic on such paths; names are keys of the file's object."""
    return _value(ast.parse(expression.strip(), mode="eval").body, content)


def _value(node: ast.AST, content: Any) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, content), _value(node.right, content))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, content)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return content[node.id]
    if isinstance(node, ast.Subscript):
        return _value(node.value, content)[_value(node.slice, content)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_value(argument, content) for argument in node.args))
    raise ValueError(f"{ast.unparse(node)} is neither a path nor arithmetic")


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = faults()
    for fault in found:
        print(fault)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
