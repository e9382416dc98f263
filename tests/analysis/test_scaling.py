"""The paper's loop numbers on models with other depths."""

import pytest

from loopcd.analysis.scaling import AMATEURS, amateur_sweep, fewest_exit_loops, scaled, sweep_note


def test_thirty_two_loops_are_the_papers() -> None:
    assert amateur_sweep(32) == AMATEURS
    assert fewest_exit_loops(32, 8) == 15
    assert "paper's" in sweep_note(32)


@pytest.mark.parametrize("loops", range(2, 65))
def test_every_amateur_can_be_contrasted_with_the_last_loop(loops: int) -> None:
    sweep = amateur_sweep(loops)
    assert sweep and sweep[0] >= 1 and sweep[-1] < loops and list(sweep) == sorted(set(sweep))


@pytest.mark.parametrize("loops", range(2, 65))
def test_early_exit_leaves_after_the_amateur_and_not_after_the_last_loop(loops: int) -> None:
    for amateur in range(1, loops):
        assert amateur < fewest_exit_loops(loops, amateur) <= loops


def test_the_scaling_is_said() -> None:
    assert amateur_sweep(12) == (2, 3, 5, 6, 8)
    assert "2, 3, 5, 6, 8" in sweep_note(12)
    assert amateur_sweep(4) == (1, 2, 3) and "4 loops" in sweep_note(4)
    assert scaled(8, 12) == 3
