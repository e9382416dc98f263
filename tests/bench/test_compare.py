"""A run against an earlier one."""

import pytest

from loopcd.bench.compare import Change, compare
from loopcd.bench.tables import change_table
from loopcd.bench.timing import Spread


def told(median: float, low: float, high: float) -> dict[str, float]:
    return {"median": median, "low": low, "high": high}


def test_a_change_is_flagged_when_each_median_is_outside_the_others_spread() -> None:
    narrow, wide = Spread(1.0, 0.9, 1.1), Spread(1.3, 0.95, 1.6)
    assert not Change("x", narrow, Spread(1.05, 1.0, 1.1)).flagged
    assert not Change("x", narrow, wide).flagged  # outside the one, inside the other
    assert Change("x", narrow, Spread(1.3, 1.2, 1.4)).flagged
    assert Change("x", narrow, Spread(1.3, 1.2, 1.4)).change == pytest.approx(0.3)


def test_ratios_are_found_wherever_they_stand_and_rates_are_left_out() -> None:
    cell = {"batch": 1, "context": 64, "tokens_per_cpu_second": told(8, 7, 9), "share_of_limit": told(0.8, 0.7, 0.9)}
    now = {"ratios": {"m": {"1": {"loopcd/greedy": told(1, 0.9, 1.1), "new": told(1, 1, 1)}}}, "decode": {"cells": [cell]}}
    before = {"ratios": {"m": {"1": {"loopcd/greedy": told(0.5, 0.4, 0.6)}}}, "decode": {"cells": [{"batch": 8}, cell]}}
    found = compare(now, before)
    assert [each.name for each in found] == [
        "ratios / m / 1 / loopcd/greedy",
        "decode / cells / batch 1, context 64 / share_of_limit",
    ]
    assert [each.flagged for each in found] == [True, False]
    assert change_table(found).rows[0][1:] == ("0.500 (0.400–0.600)", "1.000 (0.900–1.100)", "+100.0%", "changed")


def test_runs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="no ratio in common"):
        compare({"ratios": {}}, {"ratios": {"m": {"1": {"x": told(1, 1, 1)}}}})
