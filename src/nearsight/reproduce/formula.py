"""Formulas of claims: arithmetic on an experiment's rows, such as `convit[10] / deit[10] - 1`.

    convit[10]                  test accuracy in per cent of the row at 10 % of the training images
    convit                      the same where the experiment has one fraction
    gates_end(convit[100])      a measure of the run's curves (measures.py)

A formula with measures is one number for each seed. One of accuracies alone also has test pictures drawn again.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearsight.reproduce.measures import MEASURES

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Cell:
    """A row at a fraction of the training images, in per cent; None stands for the only one."""

    row: str
    percent: float | None


@dataclass(frozen=True)
class Term:
    """What a formula takes of a cell: its accuracy, or a measure of its curves."""

    cell: Cell
    measure: str = ""


class Formula:
    """A formula, parsed; `terms` are what it needs."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
            self.terms = tuple(dict.fromkeys(_terms(self._tree)))
        except (SyntaxError, _NotAFormulaError) as error:
            raise ValueError(f"{text!r} is no formula of rows, as convit[10] - deit[10] is: {error}") from error

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(dict.fromkeys(term.cell for term in self.terms))

    @property
    def of_curves(self) -> bool:
        return any(term.measure for term in self.terms)

    def __call__(self, *values: np.ndarray) -> np.ndarray:
        """With an array for each of the terms."""
        return _value(self._tree, dict(zip(self.terms, values, strict=True)))


class _NotAFormulaError(Exception):
    pass


def _terms(node: ast.AST) -> list[Term]:
    if isinstance(node, ast.BinOp):
        if type(node.op) not in _OPERATORS:
            raise _NotAFormulaError("it has + - * / only")
        return [*_terms(node.left), *_terms(node.right)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _terms(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return []
    return [_term(node)]


def _term(node: ast.AST) -> Term:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        if node.func.id not in MEASURES:
            raise _NotAFormulaError(f"there is no measure {node.func.id!r}; there are {', '.join(MEASURES)}")
        return Term(_cell(node.args[0]), node.func.id)
    return Term(_cell(node))


def _cell(node: ast.AST) -> Cell:
    if isinstance(node, ast.Name):
        return Cell(node.id, None)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        return Cell(node.value.id, float(node.slice.value))  # type: ignore[arg-type]
    raise _NotAFormulaError(f"{ast.unparse(node)!r} is no row")


def _value(node: ast.AST, values: Mapping[Term, np.ndarray]) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, values)
    return node.value if isinstance(node, ast.Constant) else values[_term(node)]
