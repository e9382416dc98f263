"""Intervals and paired tests against scipy and statsmodels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.proportion import proportion_confint

from loopcd.evaluation.statistics import compare, mcnemar, over_seeds, share, wilson


@given(st.integers(1, 2000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilson_is_that_of_statsmodels(counted: tuple[int, int]) -> None:
    right, total = counted
    got = wilson(right, total)
    low, high = proportion_confint(right, total, method="wilson")
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-9)
    assert got.accuracy == right / total


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (10, 3), (45, 30), (3, 17), (200, 200)])
def test_mcnemar_is_that_of_statsmodels(gained: int, lost: int) -> None:
    assert mcnemar(gained, lost) == pytest.approx(float(reference_mcnemar([[5, gained], [lost, 7]], exact=True).pvalue))  # pyright: ignore


def test_seeds_give_students_interval() -> None:
    accuracies = [0.331, 0.342, 0.325, 0.338]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(accuracies), scale=stats.sem(accuracies))
    got = over_seeds(accuracies)
    assert (got.accuracy, got.low, got.high) == pytest.approx((0.334, low, high))
    assert (over_seeds([0.0, 0.1]).low, over_seeds([1.0, 0.9]).high) == (0.0, 1.0)


def test_the_paired_bootstrap_is_that_of_scipy() -> None:
    random = np.random.default_rng(1)
    before, after = random.random(800) < 0.33, random.random(800) < 0.4
    wanted = stats.bootstrap(
        (after.astype(float) - before.astype(float),), np.mean, method="percentile", n_resamples=10_000, rng=random
    ).confidence_interval
    got = compare([before.tolist()], [after.tolist()])
    assert (got.low, got.high) == pytest.approx((wanted.low, wanted.high), abs=0.003)
    assert got.low < got.difference < got.high


def test_a_worked_comparison() -> None:
    before = [True] * 6 + [False] * 4
    after = [True] * 4 + [False] * 2 + [True] * 3 + [False]
    got = compare([before], [after])
    assert (got.wrong_to_right, got.right_to_wrong, got.ratio) == (3, 2, 1.5)
    assert got.difference == pytest.approx(0.1)
    assert got.mcnemar_p == 1.0  # 3 against 2


def test_the_same_answers_do_not_differ() -> None:
    got = compare([[True, False, True]], [[True, False, True]])
    assert (got.difference, got.low, got.high, got.mcnemar_p, got.ratio) == (0, 0, 0, 1.0, None)


def test_several_seeds_of_an_item_stay_together() -> None:
    """Repeating every row changes neither the difference nor its interval: no new items came."""
    before, after = [True, False, False, True, False] * 20, [True, True, False, False, True] * 20
    once, thrice = compare([before], [after]), compare([before] * 3, [after] * 3)
    assert (once.difference, once.low, once.high) == pytest.approx((thrice.difference, thrice.low, thrice.high))
    assert thrice.mcnemar_p is None
    assert thrice.wrong_to_right == 3 * once.wrong_to_right


def test_it_is_repeatable() -> None:
    rows = [[True, False, True, True] * 50], [[True, True, True, False] * 50]
    assert compare(*rows) == compare(*rows)


def test_share_of_one_run_is_wilsons() -> None:
    assert share([[True, False, True]]) == wilson(2, 3)


def test_unpaired_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape"):
        compare([[True]], [[True, False]])


def test_one_item_is_enough_and_none_is_not() -> None:
    assert compare([[False]], [[True]]).difference == 1.0
    for nothing in ([], [[]]):
        with pytest.raises(ValueError, match="at least one item"):
            compare(nothing, nothing)


@pytest.mark.parametrize(("items", "gained"), [(20, 4), (200, 4), (1319, 5)])
def test_an_interval_does_not_rule_out_what_the_exact_test_leaves_open(items: int, gained: int) -> None:
    got = compare([[False] * items], [[True] * gained + [False] * (items - gained)])
    assert got.mcnemar_p is not None and got.mcnemar_p > 0.05 and got.low == 0 < got.high
    lost = compare([[True] * gained + [False] * (items - gained)], [[False] * items])
    assert lost.low < 0 == lost.high
    clear = compare([[False] * items], [[True] * 8 + [False] * (items - 8)])
    assert clear.mcnemar_p is not None and clear.mcnemar_p < 0.05 and clear.low > 0
