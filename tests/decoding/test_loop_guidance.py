"""LoopGuidance: its formula by hand, whole texts against a slow reading, and the same tokens however it is run."""

from math import log
from typing import Any

import pytest
import torch

import loopcd
from decoding.runs import run, tokens_of
from decoding.slow import Choice, Slow, Text, best, decode, probabilities
from loopcd.decoding import rules
from loopcd.models import LoopedModel
from tools import left_padded, random_ids


def test_the_formula_by_hand() -> None:
    expert, early = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([[3.0, 0.0, 0.0, 1.0]])
    assert rules.loop_guidance(expert, early, 0.5).tolist() == [[1.5, 1.5, 0.0, -2.0]]
    assert rules.loop_guidance(expert, early, torch.tensor([[2.0]])).tolist() == [[0.0, 3.0, 0.0, -5.0]]


def test_the_adaptive_weight_by_hand() -> None:
    expert = torch.tensor([[log(0.6), log(0.3), log(0.1), float("-inf")], [7.0, 7.0, 7.0, 7.0]])
    assert rules.adaptive_weight(expert, 1.5).flatten().tolist() == pytest.approx([1.5 * (1 - 0.3), 1.5])


def guidance_rule(slow: Slow, method: loopcd.LoopGuidance) -> Any:
    def rule(ids: Text) -> Choice:
        expert, early = slow.said(ids, slow.loops), slow.early(ids, method.early_loop, method.coda)
        first, second, *_ = sorted(probabilities(expert), reverse=True)
        weight = method.weight * (1 - (first - second)) if method.adaptive else method.weight
        return best({v: float(z + weight * (z - early[v])) for v, z in enumerate(expert)})

    return rule


METHODS = [loopcd.LoopGuidance(1, 1.5), loopcd.LoopGuidance(2, 0.8, False), loopcd.LoopGuidance(1, 1.5, coda="own")]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_tokens_are_those_of_a_slow_reading(model: LoopedModel, method: loopcd.LoopGuidance) -> None:
    slow, rows = Slow(model), [random_ids(1, time, seed=time)[0] for time in (6, 9)]
    wanted = [decode(row.tolist(), 6, guidance_rule(slow, method)) for row in rows]
    ids, mask = left_padded(rows)
    assert tokens_of(model, ids, method, mask=mask, count=6) == wanted
    assert tokens_of(model, rows[0][None], method, count=6) == wanted[:1]
    assert wanted != tokens_of(model, ids, loopcd.Greedy(), mask=mask, count=6)


def test_drafted_and_chunked_change_nothing(own_model: LoopedModel) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (5, 8, 3)]
    ids, mask = left_padded(rows)
    wanted = tokens_of(own_model, ids, loopcd.LoopGuidance(2, 1.0), mask=mask, count=12)
    for loops in (1, 3):
        drafted = loopcd.LoopGuidance(2, 1.0, draft=loopcd.SelfDraft(loops, 3, fallback=False))
        assert tokens_of(own_model, ids, drafted, mask=mask, count=12) == wanted
    assert tokens_of(own_model, ids, loopcd.LoopGuidance(2, 1.0), mask=mask, count=12, prefill_chunk_size=2) == wanted


def test_weight_0_is_greedy(own_model: LoopedModel) -> None:
    ids = random_ids(2, 5)
    output = run(own_model, ids, loopcd.LoopGuidance(weight=0))
    assert output.sequences.tolist() == run(own_model, ids, loopcd.Greedy()).sequences.tolist()
    assert not output.touched.any()


def test_draws_follow_the_guided_logits(own_model: LoopedModel) -> None:
    ids, draws = random_ids(1, 5), 2000
    slow = Slow(own_model)
    expert, early = slow.said(ids[0].tolist(), slow.loops), slow.said(ids[0].tolist(), 1)
    wanted = probabilities(expert + 0.5 * (expert - early))
    torch.manual_seed(0)
    method = loopcd.LoopGuidance(1, 0.5, adaptive=False)
    drawn = run(own_model, ids.expand(draws, -1), method, count=1, do_sample=True, top_k=0).sequences[:, -1]
    counts = drawn.bincount(minlength=len(wanted))
    assert all(abs(int(n) - draws * p) < 4 * (draws * p * (1 - p)) ** 0.5 + 1 for n, p in zip(counts, wanted, strict=True))


def test_with_an_exit_the_loop_of_the_exit_is_the_last(own_model: LoopedModel) -> None:
    ids, leave = random_ids(1, 5), loopcd.EarlyExit(threshold=1e9, min_loops=2)
    found = run(own_model, ids, loopcd.LoopGuidance(1, 1.0, exit=leave), count=6)
    assert set(found.loops.flatten().tolist()) == {2}
    assert found.sequences.tolist() == run(own_model, ids, loopcd.LoopGuidance(1, 1.0), count=6, num_loops=2).sequences.tolist()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"early_loop": 0}, "early_loop=0: a whole number of at least 1"),
        ({"weight": -0.1}, "weight=-0.1: a number of at least 0"),
        ({"weight": float("nan")}, "weight=nan: a number of at least 0"),
        ({"adaptive": "yes"}, "adaptive='yes': True or False"),
        ({"coda": "mine"}, "coda='mine'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        loopcd.LoopGuidance(**settings)


def test_an_early_loop_that_is_not_early(own_model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="early_loop=4: from 1 to 3, one less than the 4 loops"):
        run(own_model, random_ids(1, 3), loopcd.LoopGuidance(early_loop=4))
    leave = loopcd.EarlyExit(min_loops=1)
    with pytest.raises(ValueError, match="could leave at or before early_loop=1"):
        run(own_model, random_ids(1, 3), loopcd.LoopGuidance(exit=leave))
