"""The rule for an early checkpoint, and the table and picture of a trajectory, on made-up measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loopcd.training.trajectory_report import draw_trajectory, early_checkpoint, trajectory_table


def record(seed: int, tokens: int, variant: str, difference: float, margin: float = 0.01) -> dict[str, Any]:
    effect = {"setting": {"amateur_loop": 1, "strength": 0.1}, "difference": difference, "margin": margin}
    return {"seed": seed, "tokens": tokens, "variant": variant, "accuracy": {"1": 0.2, "4": 0.5}, "effects": [effect]}


def pair(seed: int, tokens: int, shift: float, mix: float) -> list[dict[str, Any]]:
    return [record(seed, tokens, "steps-shift", shift), record(seed, tokens, "steps", mix)]


def test_the_largest_gain_that_costs_nothing_is_taken() -> None:
    records = pair(0, 1000, 0.05, 0.0) + pair(1, 1000, 0.04, -0.005) + pair(1, 2000, 0.09, -0.03)
    chosen = early_checkpoint(records, strength=0.1)
    assert chosen is not None and (chosen["seed"], chosen["tokens"]) == (0, 1000)


def test_one_seed_is_not_enough_and_neither_is_an_uncertain_gain() -> None:
    assert early_checkpoint(pair(0, 1000, 0.05, 0.0) + pair(1, 1000, 0.0, 0.0), strength=0.1) is None
    wide = [record(s, 1000, "steps-shift", 0.03, margin=0.04) for s in (0, 1)]
    wide += [record(s, 1000, "steps", 0.0) for s in (0, 1)]
    assert early_checkpoint(wide, strength=0.1) is None


def test_table_and_picture(tmp_path: Path) -> None:
    records = pair(0, 1000, 0.05, 0.0) + pair(0, 2000, 0.02, 0.01)
    table = trajectory_table(records, "steps-shift")
    assert "| 0 | 1,000 | 20.0 | 50.0 | +5.0 ± 1.0 |" in table
    assert draw_trajectory(records, 0.1, tmp_path / "t.png").stat().st_size > 0
    with pytest.raises(ValueError, match="steps-odd"):
        trajectory_table(records, "steps-odd")
    with pytest.raises(ValueError, match=r"0\.7"):
        draw_trajectory(records, 0.7, tmp_path / "t.png")
