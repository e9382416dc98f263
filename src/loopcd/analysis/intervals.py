"""Intervals of figures that are computed from sums over answers: the answers are resampled, whole ones.

Tokens of one answer are not independent of each other; answers are. So a rate of tokens gets its interval from drawing
answers, with all of their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from loopcd.evaluation.statistics import BOOTSTRAP_SEED, LEVEL, wilson
from loopcd.evaluation.table import Estimate

RESAMPLES = 4000
FEWEST = 10  # answers that a rate must come from to get an interval: fewer cannot show how much answers differ
MOST = 8_000_000  # weights kept in memory at once
Counts = Sequence[float] | np.ndarray  # one of each answer
Statistic = Callable[[np.ndarray], np.ndarray]  # sums [..., columns] -> figures [...]


def estimate(columns: Sequence[Counts], statistic: Statistic) -> Estimate | None:
    """A figure of the sums of `columns` (each one number an answer), with its interval; None where it has no value."""
    (found,) = estimates(np.array(columns, dtype=float).T[:, None, :], statistic)
    return found


def estimates(values: np.ndarray, statistic: Statistic) -> list[Estimate | None]:
    """As `estimate`, for many figures at once: `values` is [answers, figures, columns]."""
    answers, figures, columns = values.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        points = statistic(values.sum(axis=0))
        if answers < 2:
            return [Estimate(float(point)) if np.isfinite(point) else None for point in points]
        flat = values.reshape(answers, figures * columns)
        drawn = [statistic((weights @ flat).reshape(-1, figures, columns)) for weights in _weights(answers)]
        lows, highs = _quantiles(np.concatenate(drawn))
    return [
        Estimate(float(point), float(low), float(high)) if np.isfinite(point) else None
        for point, low, high in zip(points, lows, highs, strict=True)
    ]


def ratio(sums: np.ndarray) -> np.ndarray:
    """Of the first column to the second."""
    return sums[..., 0] / sums[..., 1]


def mean(sums: Counts, among: Counts) -> Estimate | None:
    """Σ sums / Σ among."""
    found = estimate([sums, among], ratio)
    return Estimate(found.value) if found and too_few(among) else found


def rate(counted: Counts, among: Counts) -> Estimate | None:
    """Σ counted / Σ among, both whole numbers.

    Where few answers hold what is counted (or what is not), resampling hardly shows a spread, and what is so rare hardly
    comes in clusters: Wilson's interval then.
    """
    found = mean(counted, among)
    if found is None or found.low is None:
        return found
    rare = too_few(counted) or too_few(np.asarray(among) - np.asarray(counted))
    return Estimate.of(wilson(int(sum(counted)), int(sum(among)))) if rare else found


def rate_difference(*columns: Counts) -> Estimate | None:
    """Of counted, among, counted and among: the first rate or mean minus the second; an answer may count in either or both."""
    return _two_rates(columns, lambda sums: ratio(sums) - ratio(sums[..., 2:]))


def rate_ratio(*columns: Counts) -> Estimate | None:
    """How many times the first rate is the second."""
    return _two_rates(columns, lambda sums: ratio(sums) / ratio(sums[..., 2:]))


def _two_rates(columns: Sequence[Counts], statistic: Statistic) -> Estimate | None:
    """No interval where answers are too few to compare: below both rates, and of what is counted in either."""
    counted, among, other_counted, other_among = columns
    few = too_few(among) or too_few(other_among) or too_few(counted, other_counted)
    found = estimate(columns, statistic)
    return Estimate(found.value) if found and few else found


def too_few(*counts: Counts) -> bool:
    """Whether less than FEWEST answers contribute."""
    return sum(int(np.count_nonzero(each)) for each in counts) < FEWEST


def _quantiles(drawn: np.ndarray) -> np.ndarray:
    """[2, figures]. A draw without a value (nothing to divide by) says nothing; an endless one counts as such."""
    edges = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    found = np.full((2, drawn.shape[1]), np.nan)
    for place in range(drawn.shape[1]):
        known = drawn[:, place][~np.isnan(drawn[:, place])]
        if known.size:
            found[:, place] = np.quantile(known, edges, method="nearest")  # inf - inf has no value in between
    return found


def _weights(answers: int) -> list[np.ndarray]:
    """How often each answer is drawn, [draws, answers] in blocks that fit into memory; the same at every call."""
    block = max(1, min(RESAMPLES, MOST // answers))
    return [_block(answers, block, number) for number in range(-(-RESAMPLES // block))]


@lru_cache(maxsize=8)
def _block(answers: int, draws: int, number: int) -> np.ndarray:
    generator = np.random.default_rng([BOOTSTRAP_SEED, answers, number])
    return generator.multinomial(answers, np.full(answers, 1 / answers), size=draws).astype(float)
