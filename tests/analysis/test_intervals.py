"""Intervals of sums over answers."""

from math import isclose

import numpy as np
import pytest

from loopcd.analysis.intervals import FEWEST, estimate, estimates, rate, rate_difference, rate_ratio
from loopcd.analysis.result import together
from loopcd.evaluation.statistics import wilson
from loopcd.evaluation.table import Estimate


def test_a_rate_is_of_the_sums_not_the_mean_of_rates() -> None:
    found = rate([1, 0] * 10, [10, 90] * 10)
    assert found is not None and found.value == 0.01


def test_answers_of_one_token_get_about_wilsons_interval() -> None:
    right = np.array([1] * 60 + [0] * 140)
    found, wanted = rate(right, np.ones(200)), wilson(60, 200)
    assert found is not None and found.low is not None and found.high is not None
    assert isclose(found.low, wanted.low, abs_tol=0.01) and isclose(found.high, wanted.high, abs_tol=0.01)


def test_tokens_that_come_in_clusters_have_a_wider_interval_than_single_ones() -> None:
    """20 answers, all or none of whose ten tokens count: no better known than 20 tokens."""
    clustered = rate([10] * 10 + [0] * 10, [10] * 20)
    single = rate([1] * 100 + [0] * 100, [1] * 200)
    assert clustered is not None and single is not None
    assert width(clustered) > 2.5 * width(single)


def width(found: Estimate) -> float:
    assert found.low is not None and found.high is not None
    return found.high - found.low


def test_the_same_numbers_have_the_same_interval() -> None:
    counted, among = np.arange(30) % 4, np.full(30, 5)
    assert rate(counted, among) == rate(counted, among)


def test_nothing_counted_is_not_certain_to_be_nothing() -> None:
    found = rate([0] * 20, [3] * 20)
    assert found is not None and found.low == 0 and (found.high or 0) > 0.01
    everything = rate([3] * 20, [3] * 20)
    assert everything is not None and everything.high == 1 and (everything.low or 1) < 0.99


@pytest.mark.parametrize("figure", [rate_difference, rate_ratio])
def test_a_few_answers_decide_nothing(figure: object) -> None:
    few = [1] * (FEWEST - 1) + [0] * 40
    found = figure(few, few, [1, 0] * 24 + [1], [2] * 49)  # type: ignore[operator]
    assert isinstance(found, Estimate) and found.low is None and found.above(0) == "is undecided"
    assert rate(few, few) == Estimate(1.0)


def test_rare_events_decide_nothing_either() -> None:
    """Five answers with an event against none: resampling alone would be sure of it."""
    rare, never, among = [1] * 5 + [0] * 95, [0] * 100, [30] * 100
    found = rate_difference(rare, among, never, among)
    assert found is not None and found.low is None
    single = rate(rare, among)
    assert single == Estimate.of(wilson(5, 3000))


def test_a_figure_without_a_value_is_none() -> None:
    assert rate([0, 0], [0, 0]) is None
    assert rate_ratio([1] * 20, [2] * 20, [0] * 20, [2] * 20) is None
    assert estimate([[], []], lambda sums: sums[..., 0] / sums[..., 1]) is None


def test_a_difference_follows_from_its_rates() -> None:
    ones, others = [3, 1] * 12, [1, 0] * 12
    among = [4] * 24
    difference = rate_difference(ones, among, others, among)
    assert difference is not None and difference.value == 0.5 - 0.125
    assert difference.above(0) == "holds" and difference.above(1) == "does not hold"


def test_many_figures_at_once_equal_each_alone() -> None:
    values = np.random.default_rng(0).integers(1, 5, size=(15, 3, 2)).astype(float)
    together_made = estimates(values, lambda sums: sums[..., 0] / sums[..., 1])
    alone = [estimate(list(values[:, place].T), lambda sums: sums[..., 0] / sums[..., 1]) for place in range(3)]
    assert together_made == alone


def test_a_claim_of_several_parts() -> None:
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "is undecided"]) == "holds in part"
    assert together(["does not hold", "is undecided"]) == "does not hold"
    assert together(["is undecided"]) == "is undecided"
