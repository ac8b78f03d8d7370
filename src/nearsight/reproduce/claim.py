"""A claim of a paper as data: a file of `claims/` for each paper, read strictly.

Each claim has one kind of evidence:

- `rule`: conditions on the rows of an experiment, written before it was run; code finds the status (verdict.py);
- `costs`: parameters and operations as printed, against those that are counted; `within` says how near;
- `tests`: tests that hold it in every CI run;
- `stated`: a status with its reason: what nobody ran, and what earlier measurements in `results/` say. Beside a rule
  it holds until the experiment has been run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from nearsight.reproduce.experiment import Experiment, experiment_names, load_experiment
from nearsight.reproduce.files import as_list, as_mapping, check_keys, read_mapping
from nearsight.reproduce.formula import Formula

FOLDER = Path(str(files("nearsight.reproduce") / "claims"))

CONFIRMED, DIRECTION, NOT_SEEN, CONTRADICTED = "confirmed", "confirmed in direction", "not seen", "contradicted"
NOT_RUN, OUT_OF_SCOPE = "not run", "no claim to test"
STATUSES = (CONFIRMED, DIRECTION, NOT_SEEN, CONTRADICTED, NOT_RUN, OUT_OF_SCOPE)
"""In the order in which they are counted."""
SCOPES = ("analytic", "full", "reduced")
_KINDS = ("rule", "costs", "tests", "stated")


@dataclass(frozen=True)
class Condition:
    """A formula, and where its value must lie."""

    formula: Formula
    low: float
    high: float


@dataclass(frozen=True)
class Rule:
    """What an experiment must show; all conditions together."""

    written: str
    """The date, before any run."""
    experiment: Experiment
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Stated:
    """A status that a person found, and why."""

    status: str
    reason: str
    file: str = ""
    n: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs of models as printed: name → {parameters, flops, multiply_adds}; `options` for some are beside them."""

    rows: Mapping[str, Mapping[str, Any]]
    within: str | float
    """`digit`: a unit of the last printed digit (the papers cut off as well as round); or a relative deviation."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, and the evidence for it."""

    id: str
    paper: str
    source: str
    statement: str
    reported: str
    confirm: str
    scope: str
    reduction: str
    """How the scope is reduced, beside what the experiment says."""
    rule: Rule | None
    costs: Costs | None
    tests: tuple[str, ...]
    stated: Stated | None
    note: str


def load_claims(folder: Path = FOLDER) -> list[Claim]:
    """Every claim of every file, in their order."""
    claims: list[Claim] = []
    for path in sorted(folder.glob("*.yaml")):
        told = read_mapping(path)
        check_keys(told, str(path), needed=("paper", "claims"))
        for name, value in as_mapping(told["claims"], f"{path}: claims").items():
            if any(claim.id == name for claim in claims):
                raise ValueError(f"{path}: claim {name}: another file has a claim of this name")
            claims.append(_claim(name, str(told["paper"]), value, f"{path}: claim {name}"))
    return claims


def check_files(claims: list[Claim], root: Path) -> None:
    """Every file and test that a claim names is there, below the root of the repository."""
    for claim in claims:
        if claim.stated and claim.stated.file and not (root / claim.stated.file).is_file():
            raise ValueError(f"claim {claim.id}: there is no file {claim.stated.file}")
        for test in claim.tests:
            file, _, name = test.partition("::")
            if not (root / file).is_file() or f"def {name}(" not in (root / file).read_text():
                raise ValueError(f"claim {claim.id}: there is no test {test}")


def _claim(name: str, paper: str, value: Any, where: str) -> Claim:
    told = as_mapping(value, where)
    others = ("reported", "confirm", "reduction", "note", *_KINDS)
    check_keys(told, where, needed=("source", "statement", "scope"), others=others)
    if told["scope"] not in SCOPES:
        raise ValueError(f"{where}: scope must be one of {', '.join(SCOPES)}, not {told['scope']!r}")
    if told["scope"] == "reduced" and not {"reduction", "rule"} & set(told):
        raise ValueError(f"{where}: a reduced scope needs a `reduction` that says how; an experiment says it itself")
    kinds = [kind for kind in _KINDS if kind in told]
    if len(kinds) != 1 and kinds != ["rule", "stated"]:
        raise ValueError(f"{where}: it needs one of {', '.join(_KINDS)}, and has {', '.join(kinds) or 'none'}")
    return Claim(
        id=name,
        paper=paper,
        source=str(told["source"]),
        statement=str(told["statement"]),
        reported=str(told.get("reported", "")),
        confirm=str(told.get("confirm", "")),
        scope=told["scope"],
        reduction=str(told.get("reduction", "")),
        rule=_rule(told["rule"], f"{where}: rule") if "rule" in told else None,
        costs=_costs(told["costs"], f"{where}: costs") if "costs" in told else None,
        tests=tuple(as_list(told["tests"], f"{where}: tests", str)) if "tests" in told else (),
        stated=_stated(told["stated"], f"{where}: stated") if "stated" in told else None,
        note=str(told.get("note", "")),
    )


def _rule(value: Any, where: str) -> Rule:
    told = as_mapping(value, where)
    check_keys(told, where, needed=("written", "experiment", "conditions"))
    if told["experiment"] not in experiment_names():
        known = ", ".join(experiment_names())
        raise ValueError(f"{where}: there is no experiment {told['experiment']!r}; there are {known}")
    experiment = load_experiment(told["experiment"])
    conditions = [
        _condition(one, experiment, f"{where}: condition {number}")
        for number, one in enumerate(as_list(told["conditions"], where, dict), start=1)
    ]
    return Rule(str(told["written"]), experiment, tuple(conditions))


def _condition(value: Any, experiment: Experiment, where: str) -> Condition:
    told = as_mapping(value, where)
    check_keys(told, where, needed=("value",), others=("above", "below"))
    if "above" not in told and "below" not in told:
        raise ValueError(f"{where}: `above` or `below` is missing")
    try:
        formula = Formula(str(told["value"]))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    for cell in formula.cells:
        if cell.row not in experiment.rows:
            raise ValueError(f"{where}: {experiment.name} has no row {cell.row!r}; it has {', '.join(experiment.rows)}")
        fractions = {round(100 * fraction, 6) for scale in experiment.scales.values() for fraction in scale.fractions}
        if cell.percent is not None and cell.percent not in fractions:
            raise ValueError(f"{where}: {experiment.name} has no runs of {cell.percent:g} % of the training images")
    return Condition(formula, float(told.get("above", "-inf")), float(told.get("below", "inf")))


def _costs(value: Any, where: str) -> Costs:
    told = as_mapping(value, where)
    check_keys(told, where, needed=("within", "rows"))
    within = told["within"]
    if within != "digit" and not (isinstance(within, float) and 0 < within < 1):
        raise ValueError(f"{where}: within is `digit` or a share such as 0.03, not {within!r}")
    rows = as_mapping(told["rows"], where)
    for row, printed in rows.items():
        known = ("model", "options", "parameters", "flops", "multiply_adds")
        check_keys(as_mapping(printed, f"{where}: {row}"), f"{where}: {row}", others=known)
    return Costs(rows, within)


def _stated(value: Any, where: str) -> Stated:
    told = as_mapping(value, where)
    check_keys(told, where, needed=("status", "reason"), others=("file", "n"))
    if told["status"] not in STATUSES:
        raise ValueError(f"{where}: status must be one of {', '.join(STATUSES)}, not {told['status']!r}")
    measured = told["status"] not in (NOT_RUN, OUT_OF_SCOPE)
    if measured and not (told.get("file") and isinstance(told.get("n"), int)):
        raise ValueError(f"{where}: a measurement needs the `file` in results/ and `n`, its number of seeds")
    return Stated(told["status"], str(told["reason"]), str(told.get("file", "")), int(told.get("n", 0)))
