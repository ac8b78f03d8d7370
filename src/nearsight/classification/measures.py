"""How well each class is recognised, with 95 % intervals over test pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearsight.intervals import mean_share_interval, share_interval
from nearsight.text import printable

_DRAWS = 1000
_LISTED = 5


@dataclass(frozen=True)
class ClassCounts:
    """Pictures of every class: how many there are, how many are recognised, and how many are taken for the class."""

    shown: np.ndarray
    right: np.ndarray
    taken: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, predicted: np.ndarray, classes: int) -> ClassCounts:
        columns = (labels, labels[labels == predicted], predicted)
        return cls(*(np.bincount(column, minlength=classes) for column in columns))

    @property
    def columns(self) -> np.ndarray:
        """int64 [3, classes]: shown, right, taken."""
        return np.stack([self.shown, self.right, self.taken])

    @property
    def top1(self) -> float:
        """The percentage of all pictures that is recognised."""
        return 100 * float(self.right.sum() / self.shown.sum())

    @property
    def balanced(self) -> float:
        """The mean of the recalls, in per cent, of the classes that have pictures."""
        there = self.shown > 0
        return 100 * float((self.right[there] / self.shown[there]).mean())

    @property
    def macro_f1(self) -> float:
        """The mean of F1 = 2 right / (shown + taken), in per cent, of classes that have pictures or are predicted."""
        return float(_macro_f1(self.shown, self.right, self.taken))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Of top-1 and balanced accuracy."""
        there = self.shown > 0
        low, high = share_interval(self.right.sum(), self.shown.sum())
        balanced = mean_share_interval(self.right[there], self.shown[there])
        return {"top1": (100 * float(low), 100 * float(high)), "balanced": (100 * balanced[0], 100 * balanced[1])}

    def per_class(self, classes: Sequence[str]) -> dict[str, dict[str, float]]:
        """Recall and precision, in per cent and with intervals, and the number of pictures.

        A figure of no picture is absent, and so is a class that no picture shows or is taken for.
        """
        there = np.flatnonzero(self.shown + self.taken)
        return {classes[label]: self._of_class(label) for label in there.tolist()}

    def _of_class(self, label: int) -> dict[str, float]:
        shown, right, taken = (int(column[label]) for column in (self.shown, self.right, self.taken))
        values: dict[str, float] = {}
        for name, count in (("recall", shown), ("precision", taken)):
            if count:
                low, high = share_interval(right, count)
                values |= {
                    name: 100 * right / count,
                    f"{name}_low": 100 * float(low),
                    f"{name}_high": 100 * float(high),
                }
        return {**values, "n": shown}

    def words(self, classes: Sequence[str]) -> str:
        """One sentence: balanced accuracy, macro F1, and the classes that are recognised worst."""
        low, high = self.intervals["balanced"]
        said = f"balanced accuracy {self.balanced:.1f} % [{low:.1f}, {high:.1f}], macro F1 {self.macro_f1:.1f} %"
        there = np.flatnonzero(self.shown)
        recalls = self.right[there] / self.shown[there]
        worst = there[np.argsort(recalls, kind="stable")]
        failing = int((recalls < 0.5).sum())
        of = (f"{printable(classes[k])} {self.right[k]} of {self.shown[k]} right" for k in worst[:_LISTED])
        told = f"{failing} of {len(there)} classes under half right, the worst" if failing else "worst"
        return f"{said}; {told}: {', '.join(of)}"


def macro_f1_interval(labels: np.ndarray, predicted: np.ndarray, classes: int) -> tuple[float, float]:
    """By a bootstrap of the pictures."""
    generator, hits = np.random.default_rng(0), labels == predicted
    drawn = np.empty(_DRAWS)
    for draw in range(_DRAWS):
        times = np.bincount(generator.integers(0, len(labels), len(labels)), minlength=len(labels))
        shown, right, taken = (
            np.bincount(column, weights=weights, minlength=classes)
            for column, weights in ((labels, times), (labels[hits], times[hits]), (predicted, times))
        )
        drawn[draw] = _macro_f1(shown, right, taken)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def _macro_f1(shown: np.ndarray, right: np.ndarray, taken: np.ndarray) -> np.floating:
    there = shown + taken > 0
    return 100 * (2 * right[there] / (shown + taken)[there]).mean()
