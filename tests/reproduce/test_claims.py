"""Claims: their files are read strictly, their status follows from evidence, and two of them are tested here."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_experiment import EXPERIMENT, write_experiment

from nearsight.intervals import Estimate
from nearsight.nn import LocalSelfAttention2d
from nearsight.reproduce.claim import (
    CONFIRMED,
    CONTRADICTED,
    DIRECTION,
    NOT_RUN,
    NOT_SEEN,
    Condition,
    Costs,
    Rule,
    Stated,
    check_files,
    load_claims,
)
from nearsight.reproduce.evidence import Result, pack
from nearsight.reproduce.experiment import load_experiment
from nearsight.reproduce.formula import Formula
from nearsight.reproduce.measures import MEASURES
from nearsight.reproduce.verdict import Evidence, Judge, judge, judge_costs, judge_rule, read_printed, shown

ROOT = Path(__file__).parents[2]
CLAIM = """
paper: a paper
claims:
  first:
    source: Table 1
    statement: It is better.
    scope: reduced
    reduction: smaller
    rule:
      written: "2026-11-19"
      experiment: sample_efficiency
      conditions:
        - {value: "convit[10] - deit[10]", above: 0}
"""


@pytest.fixture
def claims_file(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "a.yaml").write_text(text)
        return tmp_path

    return write


def test_the_papers_claims_can_be_read_and_name_what_is_there():
    claims = load_claims()
    check_files(claims, ROOT)
    assert {claim.paper.split(",")[0] for claim in claims} == {"ConViT", "SASA"}
    tables = {claim.source.split(",")[0] for claim in claims}
    assert tables >= {f"Table {number}" for number in range(1, 8)}


def test_printed_costs_are_those_that_are_counted():
    """In every CI run: the claims about costs, but for one that the paper prints otherwise."""
    judge = Judge(ROOT / "results" / "reproduction")
    statuses = {claim.id: judge.verdict(claim).status for claim in load_claims() if claim.costs}
    assert len(statuses) > 10
    assert {name for name, status in statuses.items() if status != CONFIRMED} == {"convit-table1-parameters-plus"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("source:", "sorce:"), "claim first: unknown key 'sorce'; did you mean 'source'"),
        (("    statement: It is better.\n", ""), "claim first: 'statement' is missing"),
        (("scope: reduced", "scope: small"), "scope must be one of analytic, full, reduced, not 'small'"),
        (("experiment: sample_efficiency", "experiment: table2"), "there is no experiment 'table2'; there are"),
        (("convit[10] -", "convnet[10] -"), "condition 1: sample_efficiency has no row 'convnet'"),
        (("convit[10] -", "convit[11] -"), "sample_efficiency has no runs of 11 % of the training images"),
        (("convit[10] - deit[10]", "convit[10] ** 2"), "'convit[10] ** 2' is no formula of rows"),
        (("convit[10] -", "depth(convit[10]) -"), "there is no measure 'depth'; there are early"),
        (("convit[10] -", "import os -"), "is no formula of rows"),
        ((", above: 0", ""), "`above` or `below` is missing"),
        (("    rule:", "    tests: [a]\n    rule:"), "it needs one of rule, costs, tests, stated"),
        (("written", "writen"), "unknown key 'writen'"),
    ],
)
def test_a_fault_in_a_claims_file_is_refused_by_name(claims_file, change, words):
    assert len(load_claims(claims_file(CLAIM))) == 1
    assert change[0] in CLAIM
    with pytest.raises(ValueError, match=r"a\.yaml: claim first") as caught:
        load_claims(claims_file(CLAIM.replace(*change)))
    assert words in str(caught.value)


STATED = CLAIM.split("    rule:")[0] + "    stated: {status: contradicted, reason: seen, file: results/x.json, n: 3}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("contradicted", "refuted"), "status must be one of confirmed, .* not 'refuted'"),
        ((", file: results/x.json", ""), "a measurement needs the `file`"),
        (("    reduction: smaller\n", ""), "a reduced scope needs a `reduction`"),
        ((", n: 3", ""), "a measurement needs the `file` in results/ and `n`"),
    ],
)
def test_a_stated_status_names_its_measurement(claims_file, change, words):
    assert isinstance(load_claims(claims_file(STATED))[0].stated, Stated)
    with pytest.raises(ValueError, match=words):
        load_claims(claims_file(STATED.replace(*change)))


def test_missing_files_and_tests_are_named(claims_file, tmp_path):
    with pytest.raises(ValueError, match=r"claim first: there is no file results/x\.json"):
        check_files(load_claims(claims_file(STATED)), tmp_path)
    tests = CLAIM.split("    rule:")[0] + "    tests: [tests/reproduce/test_claims.py::test_nothing]\n"
    with pytest.raises(ValueError, match=r"there is no test tests/reproduce/test_claims\.py::test_nothing"):
        check_files(load_claims(claims_file(tests)), ROOT)


@pytest.mark.parametrize(
    ("value", "each", "status"),
    [
        (Estimate(2, 1, 3, 3), [1, 2, 3], CONFIRMED),
        (Estimate(2, -1, 5, 3), [1, 2, 3], DIRECTION),
        (Estimate(2, 1, 3, 2), [1, 3], DIRECTION),
        (Estimate(2, -1, 5, 3), [-1, 2, 5], NOT_SEEN),
        (Estimate(-2, -5, 1, 3), [-1, -2, -3], NOT_SEEN),
        (Estimate(-2, -3, -1, 3), [-1, -2, -3], CONTRADICTED),
        (Estimate(-2, -3, -1, 2), [-1, -3], NOT_SEEN),
        (Estimate(2, 1, 3, 1), [2], DIRECTION),
        (Estimate(2, -1, 5, 1), [2], NOT_SEEN),
        (Estimate(2, np.nan, np.nan, 1), [2], NOT_SEEN),
    ],
)
def test_the_status_of_a_condition(value, each, status):
    assert judge(value, np.array(each, dtype=float), 0, np.inf) == status


def made_up(tmp_path: Path, accuracies: dict[str, list[float]], curve: dict | None = None) -> Evidence:
    """Evidence of the tiny experiment: 400 test pictures of which each run gets so many per cent right."""
    seeds = "[0, 1, 2]"
    text = EXPERIMENT.replace("seeds: [0, 1], fractions: [0.5, 1.0]", f"seeds: {seeds}")
    experiment = load_experiment(str(write_experiment(tmp_path, text)))
    results = []
    for run in experiment.runs("smoke"):
        if run.seed < len(accuracies.get(run.row.name, ())):
            correct = np.random.default_rng(run.seed).permutation(400) < 4 * accuracies[run.row.name][run.seed]
            test = {"split": "test", "pictures": 400, "accuracy": 100 * correct.mean(), "correct": pack(correct)}
            record = {"test": test, "data": {"fingerprint": {"test": "x"}}, **(curve or {})}
            results.append(Result(run, tmp_path / f"{run.name}.json", record))
    draws = np.random.default_rng(0).multinomial(400, np.full(400, 1 / 400), 4000)
    return Evidence(experiment, "smoke", results, lambda one: 100 * (draws @ one.correct) / 400)


def rule(evidence: Evidence, *values: str, low: float = 0.0) -> Rule:
    return Rule("2026-11-19", evidence.experiment, tuple(Condition(Formula(one), low, np.inf) for one in values))


@pytest.mark.parametrize(
    ("convit", "deit", "status"),
    [
        ([70, 71, 72], [50, 51, 52], CONFIRMED),
        ([52, 58, 51], [50, 51, 50], DIRECTION),
        ([52, 51, 50], [50, 51, 52], NOT_SEEN),
        ([50, 51, 52], [70, 71, 72], CONTRADICTED),
        ([70, 71, 72], [], NOT_RUN),
        ([70], [50, 51, 52], DIRECTION),
    ],
)
def test_the_status_follows_from_the_evidence(tmp_path, convit, deit, status):
    evidence = made_up(tmp_path, {"convit": convit, "deit": deit})
    assert judge_rule(rule(evidence, "convit - deit"), evidence).status == status


def test_a_rule_is_as_good_as_its_worst_condition(tmp_path):
    evidence = made_up(tmp_path, {"convit": [70, 71, 72], "deit": [50, 51, 52]})
    assert judge_rule(rule(evidence, "convit - deit", "convit / deit - 1"), evidence).status == CONFIRMED
    both = judge_rule(rule(evidence, "convit - deit", "deit - convit"), evidence)
    assert [one.status for one in both.found] == [CONFIRMED, CONTRADICTED]
    assert both.status == CONTRADICTED


def test_a_value_pairs_seeds_and_knows_how_many(tmp_path):
    evidence = made_up(tmp_path, {"convit": [70, 71, 72], "deit": [50, 54]})
    found, each = evidence.value(Formula("convit[100] - deit[100]"))
    assert found.n == 2
    assert each == pytest.approx([20, 17])
    assert found.value == pytest.approx(18.5)


def test_results_of_two_test_sets_are_not_compared(tmp_path):
    evidence = made_up(tmp_path, {"convit": [70], "deit": [50]})
    results = list(evidence.results.values())
    other = json.loads(json.dumps(results[0].record))
    other["data"]["fingerprint"]["test"] = "y"
    with pytest.raises(ValueError, match="2 different test sets"):
        Evidence(evidence.experiment, "smoke", [Result(results[0].run, results[0].path, other), results[1]], len)


@pytest.mark.parametrize(("known", "count"), [(("x:1", "x:1"), 0), (("x:1", "x"), 0), (("x:1", "x:2"), 2)])
def test_results_whose_record_has_no_contents_are_compared_by_the_rest(tmp_path, known, count):
    evidence = made_up(tmp_path, {"convit": [70], "deit": [50]})
    results = list(evidence.results.values())
    for one, fingerprint in zip(results, known, strict=True):
        one.record["data"] = {"fingerprint": {"test": fingerprint}}
    if count:
        with pytest.raises(ValueError, match="2 different test sets"):
            Evidence(evidence.experiment, "smoke", results, len)
    else:
        Evidence(evidence.experiment, "smoke", results, len)


CURVE = {
    "start": {"nonlocality": [1.0, 2.0, 4.0, 4.0], "gates": [[0.7, 0.7], [0.7, 0.7]]},
    "curve": {
        "val_top1": [10.0, 20.0, 30.0, 40.0, 50.0],
        "nonlocality": [[0.9, 1.9, 3.0, 3.5], *[[1.0, 2.0, 3.0, 3.0]] * 3, [1.5, 2.25, 3.0, 3.8]],
        "gates": [[[0.7, 0.7], [0.7, 0.7]]] * 4 + [[[0.8, 0.8], [0.05, 0.03]]],
    },
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("early", 10.0),
        ("gates_change_most", 0.1),
        ("gates_change", (0.1 - 0.66) / 2),
        ("gates_end_last", 0.04),
        ("gates_end_first", 0.8),
        ("positional_layers", 1.0),
        ("escape_least", 0.25),
        ("escape_first", 0.5),
        ("escape_second", 0.25),
        ("fall_least", -0.1),
        ("rise_last", 0.8),
        ("distance_end", (1.5 + 2.25) / 2),
        ("distance_first", 1.5),
        ("distance_last", 3.8),
    ],
)
def test_measures_of_curves(name, expected):
    assert MEASURES[name](CURVE) == pytest.approx(expected)


def test_every_measure_is_tested():
    (marks,) = (mark for mark in test_measures_of_curves.pytestmark if mark.name == "parametrize")
    assert {name for name, _ in marks.args[1]} == set(MEASURES)


def test_a_formula_of_curves_has_the_spread_of_its_seeds(tmp_path):
    evidence = made_up(tmp_path, {"convit": [70, 71, 72]}, CURVE)
    found, each = evidence.value(Formula("early(convit) / 2 + escape_first(convit)"))
    assert each == pytest.approx([5.5] * 3)
    assert (found.value, found.low, found.high, found.n) == pytest.approx((5.5, 5.5, 5.5, 3))


@pytest.mark.parametrize(
    ("within", "printed", "status"),
    [("digit", "25.6M", CONFIRMED), ("digit", "25.4M", CONTRADICTED), (0.03, "25.0M", CONFIRMED)],
)
def test_printed_costs(within, printed, status):
    assert judge_costs(Costs({"resnet50": {"parameters": printed}}, within)).status == status


def test_printed_figures_have_a_last_digit():
    assert read_printed("8.2B") == pytest.approx((8.2e9, 1e8))
    assert read_printed("27M") == pytest.approx((27e6, 1e6))
    assert shown(27_777_322, "27M") == "27.8M"
    with pytest.raises(ValueError, match="'27 M' is no printed cost"):
        read_printed("27 M")


def test_local_attention_has_another_kernel_at_every_pixel():
    """SASA's rebuttal: weights depend on content and place, where a convolution has the same everywhere."""
    _, weights = LocalSelfAttention2d(16, 16, 3, num_heads=2)(torch.randn(1, 16, 6, 7), need_weights=True)
    inner = weights[0, 1:-1, 1:-1].flatten(0, 1)  # pixels whose window has no border: [pixels, heads, k, k]
    apart = (inner[:, None] - inner[None]).abs().amax(dim=(2, 3, 4))
    assert (apart[~torch.eye(len(inner), dtype=torch.bool)] > 1e-4).all()


def test_attention_without_positions_does_not_notice_the_order_of_pixels():
    """SASA's rebuttal. The window is as large as the picture, so that every pixel sees all. With positions it does."""
    images, order = torch.randn(1, 16, 4, 4), torch.randperm(16)

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2)[:, :, order].unflatten(2, (4, 4))

    for positions, blind in (("none", True), ("relative", False)):
        layer = LocalSelfAttention2d(16, 16, 7, num_heads=2, positions=positions)
        apart = (layer(shuffled(images)) - shuffled(layer(images))).abs().max()
        assert (apart < 1e-5) == blind, positions
