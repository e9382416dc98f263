"""The arithmetic of ratios, on times that are made up."""

import pytest

from loopcd.bench.timing import Sample, Spread, Stopwatch, alternately, rates, ratio


def samples(*pairs: tuple[float, float]) -> list[Sample]:
    """Samples of (amount, wall seconds), the CPU having been busy for half of the time."""
    return [Sample(amount, wall, wall / 2) for amount, wall in pairs]


def test_a_ratio_is_taken_within_each_round() -> None:
    # the machine is three times as slow in the second round, which the ratio does not see
    fast, slow = samples((10, 1), (10, 3), (10, 1)), samples((10, 2), (10, 6), (10, 2))
    assert ratio(fast, slow) == Spread(2, 2, 2)
    assert ratio(slow, fast) == Spread(0.5, 0.5, 0.5)
    assert ratio(fast, slow, cpu=True) == Spread(2, 2, 2)


def test_a_spread_is_the_median_and_the_tenth_and_ninetieth_percentile() -> None:
    spread = Spread.of([5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])  # 1 to 11 in any order
    assert (spread.low, spread.median, spread.high) == (2, 6, 10)
    assert Spread.of([3.0]) == Spread(3, 3, 3)
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_rates_are_amounts_by_second() -> None:
    assert rates(samples((8, 2), (4, 1))) == Spread(4, 4, 4)
    assert rates(samples((8, 2)), cpu=True).median == 8
    total = samples((8, 2))[0] + samples((1, 1))[0]
    assert (total.amount, total.wall, total.cpu) == (9, 3, 1.5)


def test_rounds_of_different_length_do_not_make_a_ratio() -> None:
    with pytest.raises(ValueError, match="argument"):
        ratio(samples((1, 1)), samples((1, 1), (1, 1)))


def test_tasks_take_turns_and_the_order_turns_round() -> None:
    seen: list[str] = []

    def task(name: str) -> Sample:
        seen.append(name)
        return Sample(len(seen), 1, 1)

    found = alternately({"a": lambda: task("a"), "b": lambda: task("b")}, rounds=2, warm_up=1)
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert [sample.amount for sample in found["a"]] == [4, 5]
    assert [sample.amount for sample in found["b"]] == [3, 6]


def test_no_round_begins_after_its_time_but_one_is_run() -> None:
    found = alternately({"a": lambda: Sample(1, 1, 1)}, rounds=50, seconds=0)
    assert len(found["a"]) == 1


def test_a_stopwatch_counts_only_while_it_runs() -> None:
    watch = Stopwatch()
    assert watch.sample(3) == Sample(3, 0, 0)
    with watch.running():
        sum(range(1000))
    once = watch.wall
    sum(range(100000))
    assert watch.wall == once > 0
