"""The trace itself: what must hold of its arrays, and what follows from them."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from hand_traces import hand_trace
from loopcd.tracing import LoopTrace, best_plausible, choices, contrast_choices
from loopcd.tracing.trace import ARRAYS

# two tokens, three loops, a vocabulary of four
LOGITS = [
    [[0.0, 2.0, 1.0, 0.0], [0.0, 4.0, 1.0, 0.0], [0.0, 2.0, 1.5, 0.0]],
    [[5.0, 0.0, 0.0, 1.0], [1.0, 3.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]],
]


def test_margins_and_probabilities() -> None:
    trace = hand_trace(LOGITS)
    np.testing.assert_allclose(trace.margin, [[1.0, 3.0, 0.5], [4.0, -2.0, 3.0]], atol=1e-6)
    p = np.exp(LOGITS[0][1]) / np.exp(LOGITS[0][1]).sum()
    assert trace.probability[0, 1] == pytest.approx(p[1], abs=1e-6)
    assert (trace.winner == [1, 0]).all() and len(trace) == 2
    assert trace.plausible(0) == slice(0, 4) and trace.plausible(1) == slice(4, 5)


def test_the_two_best_tokens_may_be_equal() -> None:
    """As logits of 16 bits often are: the smaller id wins, by nothing."""
    trace = hand_trace([[[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]]])
    assert trace.winner.tolist() == [0] and trace.margin[0].tolist() == [-2.0, 0.0]


def test_what_methods_choose() -> None:
    trace = hand_trace(LOGITS, amateur_loop=2, strength=0.3, tokens=[1, 3])
    # z̃ = (0, 2 − 1.2, 1.5 − 0.3, 0) at the first token; the second has one plausible token
    assert {name: found.tolist() for name, found in choices(trace).items()} == {
        "greedy": [1, 0],
        "loopcd": [2, 0],
        "chosen": [1, 3],
    }
    assert contrast_choices(trace, 2, 0.1).tolist() == [1, 0]
    assert contrast_choices(trace, 1, 0.0).tolist() == [1, 0]
    assert contrast_choices(trace, 3, 5.0).tolist() == [0, 0]  # of equally good ones the smallest id
    assert best_plausible(trace, np.array([0.0, 3.0, 3.0, 1.0, -9.0], np.float32)).tolist() == [0, 0]  # ids 2 and 0


@pytest.mark.parametrize("loop", [0, 4, -1])
def test_there_is_no_such_amateur(loop: int) -> None:
    with pytest.raises(ValueError, match=rf"amateur_loop={loop}: from 1 to 3"):
        contrast_choices(hand_trace(LOGITS), loop, 0.3)


def test_early_exits_are_known() -> None:
    assert hand_trace(LOGITS).full_depth
    assert not hand_trace(LOGITS, exit_loop=[3, 2]).full_depth


def test_equal_means_all_fields() -> None:
    trace = hand_trace(LOGITS)
    assert trace == hand_trace(LOGITS) and trace != "a text"
    changed = {"prompt": "!", "model": "other", "strength": 0.2, "extra": {"gold": "1"}, "init_seed": 3, "token_texts": {}}
    for name, value in changed.items():
        assert trace != replace(trace, **{name: value})
    for name in ("entropy", "change"):
        assert trace != replace(trace, **{name: getattr(trace, name) + 1})
    assert {each.name for each in fields(LoopTrace)} >= set(ARRAYS)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"logit": np.zeros((2, 4), np.float32)}, r"logit has shape \(2, 4\)"),
    ({"logit": np.zeros((2, 3))}, r"logit: an array of float32"),
    ({"logit": [[0.0] * 3] * 2}, r"logit: an array of float32 with 2 dimensions, not a list"),
    ({"token_ids": np.zeros(3, np.int32)}, r"shape"),
    ({"top_ids": np.zeros((2, 3, 5), np.int32)}, r"top_logits has shape"),
    ({"pieces": ("a",)}, r"2 tokens with 1 pieces"),
    ({"num_loops": 4}, r"shape \(2, 3\)"),
    ({"amateur_loop": 0}, r"amateur_loop=0: from 1 to 3"),
    ({"plausibility": 0.0}, r"plausibility=0.0"),
    ({"strength": float("nan")}, r"strength=nan"),
    ({"exit_loop": np.array([0, 3], np.int16)}, r"exit_loop: from 1 to 3, not 0 to 3"),
    ({"plausible_count": np.array([5, 0], np.int32)}, r"plausible_count"),
    ({"plausible_count": np.array([4, 2], np.int32)}, r"plausible_count"),
    ({"plausible_count": np.array([3, 2], np.int32)}, r"winner: the first"),
    ({"winner": np.array([2, 0], np.int32)}, r"winner: the first"),
    ({"entropy": np.full((2, 3), np.nan, np.float32)}, r"entropy holds numbers that are not finite"),
    ({"runner_up": np.full((2, 3), 9, np.float32)}, r"the last loop has a better token"),
    ({"top_logits": np.arange(12, dtype=np.float32).reshape(2, 3, 2)}, r"best first"),
]


@pytest.mark.parametrize(
    ("changes", "message"), WRONG, ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else ""
)
def test_what_cannot_be_a_trace_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(hand_trace(LOGITS), **changes)


def test_no_tokens_is_no_trace() -> None:
    trace = hand_trace(LOGITS)
    empty = {name: getattr(trace, name)[:0] for name in ARRAYS}
    with pytest.raises(ValueError, match="at least 1"):
        replace(trace, **empty, pieces=())
