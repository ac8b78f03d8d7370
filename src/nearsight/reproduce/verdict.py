"""From evidence to the status of a claim.

A condition of a rule says where the value of a formula must lie. With three seeds or more and its 95 % interval
(`nearsight.intervals`, over test pictures and seeds):

- confirmed: the whole interval lies there;
- contradicted: all of the interval lies elsewhere;
- confirmed in direction: neither, but the value of every seed lies there;
- not seen: anything else.

With one seed or two a claim is confirmed in direction at most, and never contradicted; with one, its interval over test
pictures must lie there too. A rule's status is that of its worst condition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearsight.cost import count_cost, known_costs
from nearsight.intervals import Draws, Estimate, estimate, seeds_interval
from nearsight.models.registry import create_model
from nearsight.reproduce.claim import (
    CONFIRMED,
    CONTRADICTED,
    DIRECTION,
    NOT_RUN,
    NOT_SEEN,
    Claim,
    Costs,
    Rule,
)
from nearsight.reproduce.evidence import Result, read_result, read_results, result_path
from nearsight.reproduce.experiment import SCALES, Experiment, all_experiments
from nearsight.reproduce.formula import Cell, Formula, Term
from nearsight.reproduce.measures import MEASURES

_FEWEST_SEEDS = 3
_WORST_LAST = (CONFIRMED, DIRECTION, NOT_SEEN, CONTRADICTED, NOT_RUN)


@dataclass(frozen=True)
class Found:
    """The value of a condition, and what it says."""

    text: str
    status: str
    value: Estimate | None = None


@dataclass(frozen=True)
class Verdict:
    """The status of a claim, and what it rests on."""

    status: str
    found: tuple[Found, ...] = ()
    scale: str = ""


class DrawnAgain:
    """Accuracies on test pictures drawn again, of all results at a scale at once: the draws take longest."""

    def __init__(self, results: Path, scale: str) -> None:
        runs = [run for experiment in all_experiments() if scale in experiment.scales for run in experiment.runs(scale)]
        found = {result_path(results, run): read_result(results, run) for run in runs}
        self._results = {path: one for path, one in found.items() if one is not None and one.record["test"]}
        self._columns: dict[Path, np.ndarray] = {}

    def __call__(self, result: Result) -> np.ndarray:
        """Accuracy in per cent [draws] of a result."""
        if result.path not in self._columns:
            self._draw(_test_set(result))
        return self._columns[result.path]

    def _draw(self, test_set: str) -> None:
        same = {path: one for path, one in self._results.items() if _test_set(one) == test_set}
        correct = np.stack([one.correct for one in same.values()])
        self._columns.update(zip(same, Draws(correct.shape[1]).accuracies(correct).T, strict=True))


def _test_set(result: Result) -> str:
    """The outline of the pictures that its accuracy is of: the part of their fingerprint that every record has."""
    return _test_fingerprint(result).partition(":")[0]


def _test_fingerprint(result: Result) -> str:
    return result.record["data"]["fingerprint"][result.record["test"]["split"]]


class Evidence:
    """The results of an experiment at a scale."""

    def __init__(
        self, experiment: Experiment, scale: str, results: Sequence[Result], drawn: Callable[[Result], np.ndarray]
    ) -> None:
        self.experiment, self.scale, self._drawn = experiment, experiment.scale(scale), drawn
        self.results = {(one.run.row.name, one.run.fraction, one.run.seed): one for one in results}
        parts = [_test_fingerprint(one).partition(":") for one in results if one.record["test"]]
        tests = max(len({outline for outline, _, _ in parts}), len({content for _, _, content in parts if content}))
        if tests > 1:
            raise ValueError(f"{experiment.name} at scale {scale}: its results are of {tests} different test sets")

    def key(self, cell: Cell, seed: int) -> tuple[str, float, int]:
        if cell.percent is None and len(self.scale.fractions) > 1:
            raise ValueError(f"{self.experiment.name}: say which fraction of {cell.row}, as in {cell.row}[100]")
        fractions = self.scale.fractions
        percent = 100 * fractions[0] if cell.percent is None else cell.percent
        fraction = next((one for one in fractions if round(100 * one, 6) == percent), -1.0)
        return cell.row, fraction, seed

    def common_seeds(self, cells: Sequence[Cell]) -> list[int]:
        """Those for which every cell has a result."""
        return [seed for seed in self.scale.seeds if all(self.key(cell, seed) in self.results for cell in cells)]

    def value(self, formula: Formula) -> tuple[Estimate, np.ndarray] | None:
        """(the formula's estimate, its value for each seed), or None where no seed has every run."""
        seeds = self.common_seeds(formula.cells)
        if not seeds:
            return None
        keys = [[self.key(term.cell, seed) for seed in seeds] for term in formula.terms]
        measured = [
            np.array([_take(term, self.results[key]) for key in row])
            for term, row in zip(formula.terms, keys, strict=True)
        ]
        each = formula(*measured)
        if formula.of_curves or any(self.results[row[0]].record["test"] is None for row in keys):
            return seeds_interval(each), each
        drawn = [np.stack([self._drawn(self.results[key]) for key in row], axis=1) for row in keys]
        return estimate(formula, drawn, measured), each


def _take(term: Term, result: Result) -> float:
    return MEASURES[term.measure](result.record) if term.measure else result.accuracy


def judge(value: Estimate, each: np.ndarray, low: float, high: float) -> str:
    """The status of one condition; `each` has the value of each seed."""
    enough = value.n >= _FEWEST_SEEDS
    if enough and low < value.low and value.high < high:
        return CONFIRMED
    if enough and (value.high < low or high < value.low):
        return CONTRADICTED
    there = (low < each) & (each < high)
    sure = value.n > 1 or (low < value.low and value.high < high)  # of one seed, over test pictures at least
    return DIRECTION if there.all() and sure else NOT_SEEN


def judge_rule(rule: Rule, evidence: Evidence) -> Verdict:
    found = []
    for condition in rule.conditions:
        measured = evidence.value(condition.formula)
        if measured is None:
            found.append(Found(condition.formula.text, NOT_RUN))
        else:
            status = judge(*measured, condition.low, condition.high)
            found.append(Found(condition.formula.text, status, measured[0]))
    return Verdict(max((one.status for one in found), key=_WORST_LAST.index), tuple(found), evidence.scale.name)


class Judge:
    """Finds the verdict of every claim from the results in a folder."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._evidence: dict[tuple[str, str], Evidence] = {}
        self._drawn: dict[str, DrawnAgain] = {}

    def evidence(self, experiment: Experiment, scale: str) -> Evidence:
        key = experiment.name, scale
        if key not in self._evidence:
            if scale not in self._drawn:
                self._drawn[scale] = DrawnAgain(self.results, scale)
            found = read_results(self.results, experiment, scale)
            self._evidence[key] = Evidence(experiment, scale, found, self._drawn[scale])
        return self._evidence[key]

    def verdict(self, claim: Claim) -> Verdict:
        """Of a rule, that of the largest scale at which the experiment has been run, else what earlier measurements
        say; `smoke` says nothing."""
        if claim.tests:
            return Verdict(CONFIRMED)
        if claim.costs is not None:
            return judge_costs(claim.costs)
        for scale in reversed(SCALES[1:]):
            if claim.rule is not None and scale in claim.rule.experiment.scales:
                verdict = judge_rule(claim.rule, self.evidence(claim.rule.experiment, scale))
                if verdict.status != NOT_RUN:
                    return verdict
        return Verdict(claim.stated.status if claim.stated else NOT_RUN)


def judge_costs(costs: Costs) -> Verdict:
    """Confirmed when every printed figure is as near as the claim says."""
    found = []
    for row, told in costs.rows.items():
        ours = _cost(str(told.get("model", row)), json.dumps(told.get("options", {})))
        for name in ("parameters", "flops", "multiply_adds"):
            if name in told:
                printed, digit = read_printed(str(told[name]))
                allowed = digit if costs.within == "digit" else float(costs.within) * printed
                status = CONFIRMED if abs(ours[name] - printed) < allowed else CONTRADICTED
                text = f"{row}: {name.replace('_', '-')} {told[name]}, counted {shown(ours[name], str(told[name]))}"
                found.append(Found(text, status))
    return Verdict(max((one.status for one in found), key=_WORST_LAST.index), tuple(found))


_UNITS = {"M": 1e6, "B": 1e9, "G": 1e9}


def read_printed(text: str) -> tuple[float, float]:
    """A printed figure such as 8.2B, and what a unit of its last digit is."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"{text!r} is no printed cost, as 25.6M and 8.2B are")
    return float(number) * unit, unit * 10.0 ** -len(number.partition(".")[2])


def shown(value: float, printed: str) -> str:
    """Our figure with a digit more than the printed one."""
    decimals = len(printed[:-1].partition(".")[2]) + 1
    return f"{value / _UNITS[printed[-1]]:.{decimals}f}{printed[-1]}"


@cache
def _cost(model: str, options: str) -> dict[str, float]:
    """Of a model by name; with options, a JSON object, it is counted anew."""
    told: dict[str, Any]
    if options == "{}":
        told = known_costs()[model]
    else:
        with torch.device("meta"):
            network: Any = create_model(model, **json.loads(options))
        cost = count_cost(network, network.img_size)
        told = {"parameters": cost.parameters, "flops": cost.flops}
    return {**told, "multiply_adds": told.get("module_multiply_adds", told["flops"] / 2)}
