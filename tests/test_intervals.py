"""Intervals over pictures and seeds, against formulas that are known in closed form."""

import numpy as np
import pytest

from nearsight.intervals import Draws, accuracies, estimate, mean_share_interval, seeds_interval, share_interval


def _answers(runs, pictures, right=0.6):
    return (np.random.default_rng(5).random((runs, pictures)) < right).astype(int)


def test_accuracy_and_balanced_accuracy_of_answers():
    correct, labels = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 1]]), np.array([2, 2, 2, 2, 7])
    assert accuracies(correct) == pytest.approx(np.array([[60, 20]]))
    assert accuracies(correct, labels) == pytest.approx(np.array([[37.5, 50]]))
    counts = np.array([[4.0, 0, 0, 0, 1]])  # the first picture four times, the last once
    assert accuracies(correct, labels, counts) == pytest.approx(np.array([[50, 50]]))


def test_shares_have_wilsons_interval():
    """The first row is an example of Newcombe 1998, table I; 0 of 2 and 2 of 2 have intervals as well."""
    for right, count, low, high in ((81, 263, 0.2553, 0.3662), (0, 2, 0.0, 0.6576), (2, 2, 0.3424, 1.0)):
        assert share_interval(right, count) == pytest.approx((low, high), abs=1e-4)


def test_a_mean_of_shares_has_the_interval_of_independent_errors():
    assert mean_share_interval(np.array([3]), np.array([9])) == pytest.approx(share_interval(3, 9))
    right, count = np.array([5200, 700, 8000]), np.array([10000, 1000, 9000])
    share = right / count
    error = 1.96 * np.sqrt((share * (1 - share) / count).sum()) / 3
    assert mean_share_interval(right, count) == pytest.approx((share.mean() - error, share.mean() + error), abs=1e-3)
    low, high = mean_share_interval(np.array([38, 0]), np.array([38, 2]))
    assert 0.4 < low < 0.5 < high < 0.9


def test_intervals_of_balanced_accuracies_hold_what_they_should():
    """Over many sets with shares 0.9 (200 pictures) and 0.4 (15): near 95 %."""
    generator, held = np.random.default_rng(0), 0
    for _ in range(2000):
        low, high = mean_share_interval(generator.binomial([200, 15], [0.9, 0.4]), np.array([200, 15]))
        held += low <= 0.65 <= high
    assert 0.93 < held / 2000 < 0.975


@pytest.mark.parametrize("balanced", [False, True])
def test_one_run_has_the_binomial_interval(balanced):
    correct, labels = _answers(1, 800), np.arange(800) % 4  # classes of equal size: both accuracies have one error
    chosen = labels if balanced else None
    found = estimate(lambda row: row, [Draws(800).accuracies(correct, chosen)], [accuracies(correct, chosen)[0]])
    share = correct.mean()
    error = 196 * np.sqrt(share * (1 - share) / 800)
    assert found.value == pytest.approx(100 * share)
    assert found.n == 1
    assert found.high - found.low == pytest.approx(2 * error, rel=0.06)


def test_rows_that_agree_differ_by_nothing():
    correct = _answers(1, 300)
    drawn, measured = Draws(300).accuracies(correct), accuracies(correct)[0]
    found = estimate(lambda one, other: one - other, [drawn, drawn], [measured, measured])
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_seeds_widen_an_interval_to_that_of_student():
    correct = np.stack([np.arange(1000) < right for right in (400, 500, 700)]).astype(int)
    measured = accuracies(correct)[0]
    found = estimate(lambda row: row, [Draws(1000).accuracies(correct)], [measured])
    student = seeds_interval(measured)
    assert (found.low, found.high) == (student.low, student.high)
    assert student.high - student.value == pytest.approx(4.303 * np.std([40, 50, 70], ddof=1) / np.sqrt(3))
    assert found.n == 3


def test_rows_are_paired_by_the_seeds_that_both_have():
    few, many = _answers(2, 200), _answers(3, 200, 0.3)
    rows = [few, many]
    draws, formula = Draws(200), lambda one, other: one - other
    found = estimate(formula, [draws.accuracies(row) for row in rows], [accuracies(row)[0] for row in rows])
    assert found.n == 2
    assert found.value == pytest.approx(100 * (few.mean() - many[:2].mean()))


def test_runs_tested_on_other_pictures_are_refused():
    with pytest.raises(ValueError, match="tested on 7 pictures, others on 9"):
        Draws(9).accuracies(_answers(1, 7))
