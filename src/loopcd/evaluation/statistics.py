"""Intervals and paired comparisons. All shares are fractions; every interval is a 95 % one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
RESAMPLES = 10_000
BOOTSTRAP_SEED = 20_260

Rows = Sequence[Sequence[bool]]  # [seed][item]: right or wrong


@dataclass(frozen=True)
class Share:
    """An accuracy with its interval: Wilson's for one run, Student's t over the runs for several seeds."""

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A method against greedy on the same items.

    `difference` is of the accuracies, with a paired bootstrap interval over the items (an item's answers under several
    seeds stay together). The counts are over all items and seeds. `mcnemar_p` is exact and two-sided; None for several
    seeds, whose answers to one item are not independent. Where it does not rule chance out the interval holds 0: of the few
    answers that changed, all in one direction say, resampling alone would make too much.
    """

    difference: float
    low: float
    high: float
    wrong_to_right: int
    right_to_wrong: int
    mcnemar_p: float | None

    @property
    def ratio(self) -> float | None:
        """wrong→right for each right→wrong; None where nothing went wrong."""
        return self.wrong_to_right / self.right_to_wrong if self.right_to_wrong else None


def wilson(right: int, total: int) -> Share:
    interval = stats.binomtest(right, total).proportion_ci(LEVEL, method="wilson")
    return Share(right / total, float(interval.low), float(interval.high))


def over_seeds(accuracies: Sequence[float]) -> Share:
    """The mean and its interval by Student's t."""
    mean = float(np.mean(accuracies))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(accuracies) - 1) * stats.sem(accuracies))
    return Share(mean, max(0.0, mean - half), min(1.0, mean + half))


def share(rows: Rows) -> Share:
    if len(rows) == 1:
        return wilson(sum(rows[0]), len(rows[0]))
    return over_seeds([sum(row) / len(row) for row in rows])


def mcnemar(wrong_to_right: int, right_to_wrong: int) -> float:
    """Were both directions equally likely, how often would they differ at least so much?"""
    changed = wrong_to_right + right_to_wrong
    return float(stats.binomtest(wrong_to_right, changed).pvalue) if changed else 1.0


def compare(before: Rows, after: Rows) -> Comparison:
    """`after` against `before`, of equal shape and with the same items in the same order."""
    was, now = np.array(before, dtype=bool), np.array(after, dtype=bool)
    if was.shape != now.shape or was.size == 0:
        raise ValueError(f"paired rows must have the same shape and at least one item, got {was.shape} and {now.shape}")
    gained, lost = int((~was & now).sum()), int((was & ~now).sum())
    per_item = (now.astype(float) - was.astype(float)).mean(axis=0)
    (low, high), exact = bootstrap_mean(per_item), mcnemar(gained, lost) if len(was) == 1 else None
    if exact is not None and exact > 1 - LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    return Comparison(float(per_item.mean()), low, high, gained, lost, exact)


def bootstrap_mean(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval of the mean, seeded.

    The values are few different ones, and how often each is drawn is multinomial: the same as drawing items, but fast.
    """
    distinct, counts = np.unique(values, return_counts=True)
    total = int(counts.sum())
    draws = np.random.default_rng(BOOTSTRAP_SEED).multinomial(total, counts / total, size=RESAMPLES)
    means = draws @ distinct / total
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
