"""The rules on four-token distributions worked out by hand, and what holds for all distributions."""

import math
from math import log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from loopcd.decoding import rules

INF = math.inf


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def chances(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


# By hand


def test_plausible_tokens_reach_a_share_of_the_best_one() -> None:
    expert = logs(0.6, 0.3, 0.07, 0.03)  # the best has 0.6
    assert rules.plausible(expert, 0.1).tolist() == [[True, True, True, False]]  # at least 0.06
    assert rules.plausible(expert, 0.04).tolist() == [[True, True, True, True]]  # at least 0.024
    assert rules.plausible(expert, 0.4).tolist() == [[True, True, False, False]]  # at least 0.24
    assert rules.plausible(expert, 1.0).tolist() == [[True, False, False, False]]


def test_the_border_belongs_to_the_plausible_set() -> None:
    assert rules.plausible(torch.tensor([[0.0, log(0.25), log(0.25) - 1e-4]]), 0.25).tolist() == [[True, True, False]]


def test_contrast_by_hand() -> None:
    expert, amateur = logs(0.6, 0.3, 0.07, 0.03), logs(0.8, 0.1, 0.05, 0.05)
    allowed = torch.tensor([[True, True, True, False]])
    # p_e / p_a^1 = 0.6/0.8, 0.3/0.1, 0.07/0.05 = 0.75, 3, 1.4; together 5.15
    found = chances(rules.contrast(expert, amateur, 1.0, allowed))
    torch.testing.assert_close(found, torch.tensor([[0.75, 3, 1.4, 0]], dtype=torch.float64) / 5.15)
    # λ = 1/2 and square numbers for the amateur: p_e / √p_a = 0.6/0.8, 0.3/0.5, 0.07/0.1 = 0.75, 0.6, 0.7; together 2.05
    found = chances(rules.contrast(expert, logs(0.64, 0.25, 0.01, 0.1), 0.5, allowed))
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.6, 0.7, 0]], dtype=torch.float64) / 2.05)


def test_contrast_changes_the_winner_where_the_amateur_was_sure() -> None:
    expert, amateur = logs(0.5, 0.4, 0.09, 0.01), logs(0.9, 0.05, 0.04, 0.01)
    allowed = rules.plausible(expert, 0.1)  # at least 0.05: not the last token, whose 0.01/0.01 would be large
    # λ = 0.05: 0.5/0.9^0.05 = 0.503 beats 0.4/0.05^0.05 = 0.465; λ = 0.3: 0.516 loses to 0.4/0.407 = 0.982
    assert int(rules.contrast(expert, amateur, 0.05, allowed).argmax()) == 0
    assert int(rules.contrast(expert, amateur, 0.3, allowed).argmax()) == 1


def test_guidance_by_hand() -> None:
    conditional, unconditional = logs(0.4, 0.4, 0.15, 0.05), logs(0.64, 0.16, 0.16, 0.04)
    allowed = torch.tensor([[True, True, True, False]])
    # ω = 3/2: p_c^1.5 / √p_uc = 0.4^1.5/0.8, 0.4^1.5/0.4, 0.15^1.5/0.4
    wanted = torch.tensor([[0.4**1.5 / 0.8, 0.4**1.5 / 0.4, 0.15**1.5 / 0.4, 0]], dtype=torch.float64)
    found = chances(rules.guidance(conditional, unconditional, 1.5, allowed))
    torch.testing.assert_close(found, wanted / wanted.sum())
    # ω = 1 is the conditional distribution, cut off
    found = chances(rules.guidance(conditional, unconditional, 1.0, allowed))
    torch.testing.assert_close(found, torch.tensor([[0.4, 0.4, 0.15, 0]], dtype=torch.float64) / 0.95)


def test_noise_is_scaled_by_the_root_mean_square() -> None:
    hidden = torch.tensor([[1.0, 7.0], [0.0, 2.0]])  # RMS √(50/2) = 5 and √(4/2) = √2
    epsilon = torch.tensor([1.0, -2.0])
    wanted = torch.tensor([[1 + 0.5 * 5, 7 - 0.5 * 10], [0.5 * sqrt(2), 2 - sqrt(2)]])
    torch.testing.assert_close(rules.noisy(hidden, 0.5, epsilon), wanted)
    assert torch.equal(rules.noisy(hidden, 0.0, epsilon), hidden)


def test_entropy_by_hand() -> None:
    logits = torch.cat([logs(0.25, 0.25, 0.25, 0.25), logs(0.5, 0.5, 0, 0), logs(1, 0, 0, 0), logs(0.5, 0.25, 0.125, 0.125)])
    # the last: ½ ln 2 + ¼ ln 4 + ¼ ln 8 = (½ + ½ + ¾) ln 2
    wanted = torch.tensor([log(4), log(2), 0, 1.75 * log(2)], dtype=torch.float64)
    torch.testing.assert_close(rules.entropy(logits), wanted)


def test_margins_and_the_drop_from_their_peak() -> None:
    by_loop = torch.tensor([[[2.0, 1.0, 0.0, -1.0], [5.0, 1.5, 3.0, 0.0], [4.0, 3.5, 0.0, 1.0]]])  # [batch, loop, vocab]
    winner = torch.tensor([[0, 0, 0]])
    margins = rules.margin(by_loop, winner)
    assert margins.tolist() == [[1.0, 2.0, 0.5]]  # 2 − 1, 5 − 3, 4 − 3.5
    assert rules.confidence_drop(margins).tolist() == [1.5]  # 2 − 0.5: just hard
    assert rules.margin(by_loop, winner + 1).tolist() == [[-1.0, -3.5, -0.5]]  # behind the best other one
    assert rules.confidence_drop(torch.tensor([[0.0, 1.0, 3.0]])).tolist() == [0.0]  # the peak is the last loop


def test_relative_change() -> None:
    before, after = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    torch.testing.assert_close(rules.relative_change(before, after), torch.tensor([1.0, 0.8]))  # 5/5, 4/5


def test_contrast_of_impossible_tokens_is_minus_infinity() -> None:
    scores = rules.contrast(
        logs(0.7, 0.3, 0.1, 0.1), logs(0.25, 0.25, 0.25, 0.25), 0.3, torch.tensor([[True, True, False, False]])
    )
    assert scores[0, 2:].tolist() == [-INF, -INF]
    assert torch.isfinite(scores[0, :2]).all()


# For all distributions

tenths = st.integers(-80, 80).map(lambda n: n / 8)  # exact in binary, so that sums of them are, too
logits = arrays.arrays("float64", (1, 6), elements=tenths).map(torch.from_numpy)
strengths = st.floats(0, 1.5)
shares = st.floats(0.01, 1)


@given(logits, logits, shares)
def test_strength_0_is_greedy(expert: Tensor, amateur: Tensor, plausibility: float) -> None:
    scores = rules.contrast(expert, amateur, 0.0, rules.plausible(expert, plausibility))
    assert expert[0, int(scores.argmax())] == expert.max()


@given(logits, logits, strengths)
def test_plausibility_1_is_greedy(expert: Tensor, amateur: Tensor, strength: float) -> None:
    scores = rules.contrast(expert, amateur, strength, rules.plausible(expert, 1.0))
    assert expert[0, int(scores.argmax())] == expert.max()


@given(logits, logits, strengths, shares)
def test_the_chosen_token_is_plausible(expert: Tensor, amateur: Tensor, strength: float, plausibility: float) -> None:
    scores = rules.contrast(expert, amateur, strength, rules.plausible(expert, plausibility))
    p = expert.softmax(dim=-1)[0]
    assert p[int(scores.argmax())] >= plausibility * p.max() * (1 - 1e-12)
    assert (p[scores[0] > -INF] >= plausibility * p.max() * (1 - 1e-12)).all()
    assert (p[scores[0] == -INF] < plausibility * p.max()).all()


@given(logits, logits, strengths, shares, tenths, tenths)
def test_constants_change_nothing(
    expert: Tensor, amateur: Tensor, strength: float, plausibility: float, one: float, other: float
) -> None:
    allowed = rules.plausible(expert, plausibility)
    # a token exactly at the border may fall on either side of it by rounding
    border = (expert - expert.max() - log(plausibility)).abs()
    if (border > 1e-9).all():
        assert torch.equal(rules.plausible(expert + one, plausibility), allowed)
    plain = rules.contrast(expert, amateur, strength, allowed)
    torch.testing.assert_close(rules.contrast(expert + one, amateur + other, strength, allowed), plain, rtol=0, atol=1e-9)
    plain = rules.guidance(expert, amateur, strength, allowed)
    torch.testing.assert_close(rules.guidance(expert + one, amateur + other, strength, allowed), plain, rtol=0, atol=1e-9)


@given(logits, logits, strengths, shares, st.permutations(range(6)))
def test_the_plausible_tokens_alone_give_the_scores_of_the_whole_vocabulary(
    expert: Tensor, amateur: Tensor, strength: float, plausibility: float, order: list[int]
) -> None:
    allowed = rules.plausible(expert, plausibility)
    whole = rules.contrast(expert, amateur, strength, allowed)
    subset = torch.tensor([token for token in order if allowed[0, token]])
    part = rules.contrast(expert[:, subset], amateur[:, subset], strength, allowed[:, subset])
    torch.testing.assert_close(part, whole[:, subset], rtol=0, atol=1e-9)
    assert whole.exp().sum() == pytest.approx(1)


@given(logits)
def test_entropy_is_between_0_and_that_of_ignorance(each: Tensor) -> None:
    assert -1e-12 <= float(rules.entropy(each)) <= log(6) + 1e-12


@given(arrays.arrays("float64", (2, 5), elements=tenths).map(torch.from_numpy))
def test_a_drop_is_never_negative(margins: Tensor) -> None:
    drop = rules.confidence_drop(margins)
    assert (drop >= 0).all()
    assert ((drop == 0) == (margins[:, -1] == margins.amax(dim=-1))).all()
