"""Figures by class, against their definitions written as loops."""

import numpy as np
import pytest

from nearsight.classification.measures import ClassCounts, macro_f1_interval


@pytest.fixture
def answers():
    generator = np.random.default_rng(1)
    labels = generator.choice(5, 300, p=[0.6, 0.2, 0.1, 0.1, 0])  # nothing shows the last class
    predicted = np.where(generator.random(300) < 0.7, labels, generator.integers(0, 5, 300))
    return labels, predicted


def test_they_are_what_they_are_called(answers):
    labels, predicted = answers
    counts = ClassCounts.of(labels, predicted, 6)
    recalls, scores = [], []
    for label in range(6):
        hits = sum(1 for truth, guess in zip(labels, predicted, strict=True) if truth == guess == label)
        truths, guesses = (sum(1 for one in column if one == label) for column in (labels, predicted))
        if truths:
            recalls.append(hits / truths)
        if truths or guesses:
            precision, recall = hits / guesses if guesses else 0, hits / truths if truths else 0
            scores.append(2 * precision * recall / (precision + recall) if hits else 0)
    assert counts.top1 == pytest.approx(100 * np.mean(labels == predicted))
    assert counts.balanced == pytest.approx(100 * np.mean(recalls))
    assert counts.macro_f1 == pytest.approx(100 * np.mean(scores))
    assert len(recalls) == 4
    assert len(scores) == 5
    low, high = macro_f1_interval(labels, predicted, 6)
    assert low < counts.macro_f1 < high
    assert high - low < 20
    figures = counts.per_class("abcdef")
    assert list(figures) == list("abcde")
    assert figures["a"]["n"] == (labels == 0).sum()
    assert "recall" not in figures["e"]
    assert figures["e"]["precision"] == 0


def test_a_class_that_fails_is_named():
    labels = np.array([0] * 38 + [1] * 2)
    counts = ClassCounts.of(labels, np.zeros(40, dtype=np.int64), 2)
    assert counts.top1 == 95
    said = counts.words(["dog", "ferret"])
    assert said.startswith("balanced accuracy 50.0 % [")
    assert said.endswith("1 of 2 classes under half right, the worst: ferret 0 of 2 right, dog 38 of 38 right")
