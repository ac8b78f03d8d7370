"""95 % intervals: of shares of pictures, and of accuracies of runs, which cover test pictures as well as seeds.

For runs, a value is a formula of rows' accuracies, such as the difference of two. Its interval is the wider, on each
side, of

- a bootstrap: test pictures and seeds are drawn again, the same ones for every row, and the formula computed anew;
- Student's t over the seeds, paired: the formula of each seed's accuracies. A bootstrap of few seeds is too narrow.

With one seed only the first is there, and it covers pictures alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Formula = Callable[..., np.ndarray]
"""Of accuracies in per cent, one array of draws (or of seeds) for each row."""

DRAWS = 4000
_CHUNK = 250
# 97.5 % points of Student's t by number of seeds.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

_Z = 1.959964  # of the normal distribution


def share_interval(right: np.ndarray | float, count: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of right / count, of independent pictures: it has width even where all or none are right."""
    share, spread = right / count, _Z**2 / count
    half = np.sqrt(spread * share * (1 - share) + spread**2 / 4)
    low, high = ((share + spread / 2 + side) / (1 + spread) for side in (-half, half))
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def mean_share_interval(right: np.ndarray, count: np.ndarray) -> tuple[float, float]:
    """Of the mean of several shares, such as a balanced accuracy: their Wilson intervals joined as independent errors.

    Each side is the root of the summed squares of the shares' own (Zou and Donner 2008: MOVER).
    """
    share, (low, high) = right / count, share_interval(right, count)
    mean = float(share.mean())
    below, above = (float(np.sqrt(np.square(share - bound).sum())) / len(share) for bound in (low, high))
    return mean - below, mean + above


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and the number of seeds."""

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float]:
        return {"value": round(self.value, 3), "low": round(self.low, 3), "high": round(self.high, 3), "n": self.n}


def accuracies(correct: np.ndarray, labels: np.ndarray | None = None, weights: np.ndarray | None = None) -> np.ndarray:
    """Accuracy in per cent [draws, runs] of correct [runs, pictures], zeros and ones.

    With labels [pictures] it is balanced: the mean of the classes' recalls. weights [draws, pictures] say how often a
    picture counts; by default there is one draw in which each counts once. A class that a draw leaves out counts as 0.
    """
    weights = np.ones((1, correct.shape[1])) if weights is None else weights
    classes = [slice(None)] if labels is None else [labels == label for label in np.unique(labels)]
    recalls = [
        weights[:, part] @ correct[:, part].T / np.maximum(weights[:, part].sum(1, keepdims=True), 1e-9)
        for part in classes
    ]
    return 100 * np.mean(recalls, axis=0)


class Draws:
    """Test pictures drawn again, the same for all runs that are added."""

    def __init__(self, num_pictures: int) -> None:
        self.num_pictures = num_pictures

    def accuracies(self, correct: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
        """correct [runs, pictures] of zeros and ones → accuracy in per cent [draws, runs], with labels balanced."""
        if correct.shape[1] != self.num_pictures:
            raise ValueError(f"a run was tested on {correct.shape[1]} pictures, others on {self.num_pictures}")
        generator, share = np.random.default_rng(0), np.full(self.num_pictures, 1 / self.num_pictures)
        parts = []
        for first in range(0, DRAWS, _CHUNK):
            counts = generator.multinomial(self.num_pictures, share, min(_CHUNK, DRAWS - first)).astype(float)
            parts.append(accuracies(correct, labels, counts))
        return np.concatenate(parts)


def estimate(formula: Formula, drawn: Sequence[np.ndarray], measured: Sequence[np.ndarray]) -> Estimate:
    """The formula of rows: accuracies of pictures drawn again [draws, seeds], and as measured [seeds], for each row.

    Rows are paired by seed; where one has more seeds than another, only the common ones count.
    """
    n = min(len(row) for row in measured)
    value = float(formula(*(np.array([row[:n].mean()]) for row in measured))[0])
    seeds = np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), DRAWS) / n
    spread = formula(*((row[:, :n] * seeds).sum(1) for row in drawn))
    low, high = (float(bound) for bound in np.quantile(spread, (0.025, 0.975)))
    if n > 1:
        each = seeds_interval(formula(*(row[:n] for row in measured)))
        low, high = min(low, each.low), max(high, each.high)
    return Estimate(value, low, high, n)


def seeds_interval(values: np.ndarray) -> Estimate:
    """Mean and Student's t interval of one value for each seed; of one seed no interval is known."""
    n = len(values)
    if n == 1:
        return Estimate(float(values[0]), math.nan, math.nan, 1)
    error = _T[min(n, max(_T))] * float(values.std(ddof=1)) / math.sqrt(n)
    mean = float(values.mean())
    return Estimate(mean, mean - error, mean + error, n)
