"""The paper's statistics on a trace made by hand, whose answers can be read off it; then on real ones."""

from collections import Counter
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopcd
from decoding.slow import Slow, Text, loopcd_rule
from hand_traces import hand_trace
from loopcd.analysis import statistics
from loopcd.models import LoopedModel
from loopcd.tracing import LoopTrace, TraceWriter, Written, read_traces, trace_texts

TEXTS = [" 7", " +", "So", "\n"]


def logits_of(*leads: tuple[int, float]) -> list[list[float]]:
    """One token's logits [loop][vocabulary of 4]: at each loop that token leads the others, which are 0, by so much."""
    return [[lead if token == best else 0.0 for token in range(4)] for best, lead in leads]


#                  loop 1     loop 2    loop 3    loop 4
EASY = logits_of((0, 1.0), (0, 2.0), (0, 3.0), (0, 4.0))  # " 7"
OVERCONFIDENT = logits_of((1, 1.0), (1, 6.0), (1, 4.5), (1, 4.5))  # " +", falls by 1.5
REVISED = logits_of((2, 5.0), (3, 2.0), (3, 2.0), (2, 1.0))  # "So", falls by 4, not top-1 at loops 2 and 3
WON_LATE = logits_of((0, 3.0), (1, 1.0), (0, 0.5), (3, 2.0))  # "\n", top-1 at the end only
TABLE = [EASY, OVERCONFIDENT, REVISED, WON_LATE]


@pytest.fixture
def trace() -> LoopTrace:
    return hand_trace(TABLE, texts=TEXTS, amateur_loop=2, strength=0.8)


def test_margins_of_the_winner(trace: LoopTrace) -> None:
    margins = [[1, 2, 3, 4], [1, 6, 4.5, 4.5], [5, -2, -2, 1], [-3, -1, -0.5, 2]]
    np.testing.assert_array_equal(trace.margin, margins)


def test_drops_and_hard_tokens(trace: LoopTrace) -> None:
    np.testing.assert_array_equal(statistics.drop(trace), [0, 1.5, 4, 0])
    assert statistics.hard_tokens(trace).tolist() == [False, True, True, False]
    assert statistics.hard_tokens(trace, 1.6).tolist() == [False, False, True, False]
    assert statistics.hard_tokens(trace, 0).tolist() == [True] * 4


def test_peak_loops(trace: LoopTrace) -> None:
    assert statistics.peak_loop(trace).tolist() == [4, 2, 1, 4]
    level = hand_trace([logits_of((0, 1.0), (0, 2.0), (0, 2.0), (0, 1.0))])
    assert statistics.peak_loop(level).tolist() == [2]


def test_late_flips_and_early_overconfidence(trace: LoopTrace) -> None:
    assert statistics.late_flips(trace).tolist() == [False, False, True, True]  # loops 3 and 4 of 4
    assert statistics.early_overconfident(trace).tolist() == [False, True, False, False]
    assert statistics.early_overconfident(trace, 1.6).tolist() == [False] * 4


@pytest.mark.parametrize(("loops", "first"), [(32, 17), (4, 3), (5, 3), (3, 2), (2, 2), (1, 1)])
def test_the_latter_half_begins_after_the_middle(loops: int, first: int) -> None:
    """Not top-1 just before the latter half is no Late-Flip; at its first loop it is one (unless that is the last)."""
    for loop in range(1, loops):
        leads = [(1 if each == loop else 0, 1.0) for each in range(1, loops + 1)]
        assert statistics.late_flips(hand_trace([logits_of(*leads)])).tolist() == [loop >= first]


def test_an_equal_logit_is_still_top_1() -> None:
    table = [[[1.0, 1.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0]]]
    assert not statistics.late_flips(hand_trace(table)).any()


def test_alternatives_at_late_flips(trace: LoopTrace) -> None:
    assert statistics.late_alternatives(trace).tolist() == [-1, -1, 3, 0]
    tops = [0, 0, 0, 0, 1, 2, 2, 3]  # of eight loops; the last four count, without the winner 3
    by_frequency = hand_trace([logits_of(*((top, 1.0) for top in tops))])
    assert statistics.late_alternatives(by_frequency).tolist() == [2]
    level = hand_trace([logits_of(*((top, 1.0) for top in [0, 0, 0, 0, 2, 1, 3, 3]))])
    assert statistics.late_alternatives(level).tolist() == [1]  # the later one


def test_margin_flips(trace: LoopTrace) -> None:
    # z̃ = z_4 − 0.8 z_2 of the winner and of the best other: 4 − 1.6 > 0; 4.5 − 4.8 < 0; 1 > 0; 2 > 0
    assert statistics.margin_flips(trace).tolist() == [False, True, False, False]
    weak = hand_trace(TABLE, amateur_loop=2, strength=0.7)  # 4.5 − 4.2 > 0
    assert not statistics.margin_flips(weak).any()


def test_entropies() -> None:
    table = [[[0.0, 0.0, 0.0, 0.0], [log(3), 0.0, -99.0, -99.0]], [[0.0, -99.0, -99.0, -99.0], [0.0, 0.0, -99.0, -99.0]]]
    trace = hand_trace(table)
    uneven = -(0.75 * log(0.75) + 0.25 * log(0.25))
    np.testing.assert_allclose(trace.entropy, [[log(4), uneven], [0, log(2)]], atol=1e-6)
    assert statistics.trace_entropy(trace) == pytest.approx((uneven + log(2)) / 2, abs=1e-6)


def test_contests(trace: LoopTrace) -> None:
    assert statistics.contested(trace).tolist() == [False, False, True, True]  # leads of 4, 4.5, 1 and 2; ln 10 = 2.3


def test_kinds_of_tokens(trace: LoopTrace) -> None:
    assert statistics.winner_texts(trace) == [" 7", " +", "So", "\n"]
    assert statistics.numeric_tokens(trace).tolist() == [True, False, False, False]
    assert statistics.operator_tokens(trace).tolist() == [False, True, False, False]
    assert statistics.hard_token_types(trace) == Counter({"+": 1, "So": 1})
    assert statistics.hard_token_types(trace, 0) == Counter({"7": 1, "+": 1, "So": 1, "\n": 1})


def test_kinds_need_texts(ouro: LoopedModel) -> None:
    (trace,) = trace_texts(ouro, None, [Written([1], [2, 3])])
    with pytest.raises(ValueError, match="without a tokenizer"):
        statistics.numeric_tokens(trace)


# On real traces

OVER_TOKENS = ("drop", "hard_tokens", "peak_loop", "margin_flips", "late_flips", "early_overconfident", "late_alternatives")
KINDS = ("contested", "numeric_tokens", "operator_tokens", "hard_token_types", "winner_texts")


def test_of_a_reloaded_trace_are_those_of_the_fresh_one(model: LoopedModel, tokenizer: Any, tmp_path: Path) -> None:
    made = loopcd.generate(model, tokenizer, ["3 + 4", "a longer text"], loopcd.Greedy(), max_new_tokens=12, trace=True)
    with TraceWriter(tmp_path / "traces.npz") as writer:
        for each in made:
            writer.add(each.trace)
    for each, back in zip(made, read_traces(tmp_path / "traces.npz"), strict=True):
        for name in ("trace_entropy", *OVER_TOKENS, *KINDS):
            fresh, again = (getattr(statistics, name)(trace) for trace in (each.trace, back))
            np.testing.assert_array_equal(fresh, again, err_msg=name)


def test_margin_flips_are_what_plain_loopcd_changes(own_model: LoopedModel, tokenizer: Any) -> None:
    """At every position of a greedy text: LoopCD without the plausibility constraint takes another token there or not."""
    flips, slow = [], Slow(own_model)
    for prompt, strength in (("3 + 4", 0.1), ("a longer text", 0.1), ("a longer text", 0.9)):
        greedy = loopcd.generate(own_model, tokenizer, prompt, loopcd.Greedy(), max_new_tokens=10)
        (trace,) = trace_texts(own_model, tokenizer, [Written.of(prompt, greedy)], amateur_loop=1, strength=strength)
        ids, rule = trace.prompt_ids.tolist(), loopcd_rule(slow, 1, strength, plausibility=1e-300)
        plain = [rule(Text([*ids, *greedy.token_ids[:count]], len(ids)))[0] for count in range(len(trace))]
        assert [a != b for a, b in zip(plain, greedy.token_ids, strict=True)] == statistics.margin_flips(trace).tolist()
        assert plain == trace.unconstrained.tolist()
        flips += statistics.margin_flips(trace).tolist()
    assert any(flips) and not all(flips)


def test_hard_tokens_are_those_that_selective_decoding_touches(own_model: LoopedModel, tokenizer: Any) -> None:
    """LoopCD at hard positions intervenes where the trace says hard and contested."""
    method = loopcd.LoopCD(1, 0.9, where="hard")
    for prompt in ("3 + 4", "a longer text"):
        made = loopcd.generate(own_model, tokenizer, prompt, method, max_new_tokens=20, trace=True)
        found = statistics.hard_tokens(made.trace) & statistics.contested(made.trace)
        assert int(found.sum()) == made.touched
