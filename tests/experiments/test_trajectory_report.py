"""The rule for an early checkpoint, and the table and picture of a trajectory, on made-up measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.trajectory_report import draw_trajectory, early_checkpoint, finding, pooled_table, trajectory_section


def record(seed: int, tokens: int, variant: str, difference: float, margin: float = 0.01) -> dict[str, Any]:
    """200 problems, of which LoopCD loses 4 and gains what makes the difference."""
    counts = {"problems": 200, "greedy": 0.5, "wrong_to_right": round(200 * difference) + 4, "right_to_wrong": 4}
    effect = {"setting": {"amateur_loop": 1, "strength": 0.2}, "difference": difference, "margin": margin, **counts}
    accuracy = {"1": 0.2 + 0.1 * seed, "4": 0.5}
    place = {"seed": seed, "tokens": tokens, "variant": variant, "split": "tuning", "problems": 200}
    return {**place, "accuracy": accuracy, "effects": [effect]}


def pair(seed: int, tokens: int, shift: float, mix: float) -> list[dict[str, Any]]:
    return [record(seed, tokens, "steps-shift", shift), record(seed, tokens, "steps", mix)]


def test_the_largest_gain_that_costs_nothing_is_taken() -> None:
    records = pair(0, 1000, 0.05, 0.0) + pair(1, 1000, 0.04, -0.005) + pair(1, 2000, 0.09, -0.03)
    chosen = early_checkpoint(records)
    assert chosen is not None and (chosen["seed"], chosen["tokens"]) == (0, 1000)


def test_one_seed_is_not_enough_and_neither_is_an_uncertain_gain() -> None:
    assert early_checkpoint(pair(0, 1000, 0.05, 0.0) + pair(1, 1000, 0.0, 0.0)) is None
    wide = [record(s, 1000, "steps-shift", 0.03, margin=0.04) for s in (0, 1)]
    wide += [record(s, 1000, "steps", 0.0) for s in (0, 1)]
    assert early_checkpoint(wide) is None


def test_seeds_are_brought_together() -> None:
    records = pair(0, 1000, 0.05, 0.0) + pair(1, 1000, 0.10, 0.0)
    table = pooled_table(records, "steps-shift")
    # 30 of 400 more right: 38 gained, 8 lost, so 7.5 points; its margin is 1.96 * sqrt((46 / 400 - 0.075^2) / 400)
    assert "| 1,000 | 25.0 | 50.0 | +7.5 ± 3.2 |" in table
    with pytest.raises(ValueError, match="steps-odd"):
        pooled_table(records, "steps-odd")


def test_the_finding_counts_gains_and_losses() -> None:
    records = pair(0, 1000, 0.05, 0.0) + pair(0, 2000, -0.02, 0.0) + pair(1, 1000, 0.005, 0.0)
    told = finding(records, "steps-shift")
    assert "of 3 checkpoints 1 gain and 1 lose" in told and "at 1,000 tokens" in told


def test_the_section_names_the_early_checkpoint_or_its_absence(tmp_path: Path) -> None:
    found = pair(0, 1000, 0.05, 0.0) + pair(1, 2000, 0.06, 0.0)
    assert "seed 1 at 2,000 tokens" in trajectory_section(found)
    assert "so none is kept" in trajectory_section(pair(0, 1000, 0.05, 0.0))
    assert draw_trajectory(found, tmp_path / "t.png").stat().st_size > 0
    with pytest.raises(ValueError, match=r"0\.7"):
        draw_trajectory(found, tmp_path / "t.png", strength=0.7)
