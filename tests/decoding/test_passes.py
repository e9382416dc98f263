"""What a pass over several tokens costs: between what was timed, never less than one nor more than as many."""

import pytest

from loopcd.decoding import draft, passes
from loopcd.decoding.draft import DraftPlan, SelfDraft
from loopcd.decoding.passes import PassCosts, pass_costs
from tools import tiny_huginn, tiny_ouro


def test_costs_lie_on_the_lines_between_the_timed_ones() -> None:
    costs = PassCosts((1.0, 1.4, 1.6, 3.2))
    assert [costs.of(tokens) for tokens in (1, 2, 3, 4, 6, 8, 10)] == pytest.approx([1.0, 1.4, 1.5, 1.6, 2.4, 3.2, 4.0])


def test_the_assumed_ones_are_a_line() -> None:
    assert PassCosts.assumed(1).of(5) == pytest.approx(1.24) and PassCosts.assumed(8).of(3) == pytest.approx(1.4)


def test_measured_once_for_a_model_and_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_ouro()
    first = pass_costs(model, 2)
    assert all(1 <= cost <= tokens for cost, tokens in zip(first.costs, passes.TIMED, strict=True))
    monkeypatch.setattr(passes, "_measure", lambda model, batch: PassCosts((1.0, 2.0, 4.0, 8.0)))
    assert pass_costs(model, 2) is first and pass_costs(model, 3).of(4) == 4


def test_a_batch_that_shrinks_is_not_measured_at_every_size() -> None:
    model = tiny_ouro()
    assert pass_costs(model, 8) is pass_costs(model, 5) and pass_costs(model, 4) is pass_costs(model, 3)
    assert pass_costs(model, 4) is not pass_costs(model, 8)


def test_beginnings_and_readouts_are_measured_and_count() -> None:
    model = tiny_ouro()
    measured = pass_costs(model, 1)
    assert measured.beginning is not None and measured.readout is not None
    assert measured.beginning > 0 and measured.readout > 0
    cheap, dear = (PassCosts((1.0, 1.0, 1.0, 1.0), 1.0, each, each) for each in (0.01, 1.0))
    assert DraftPlan(1, 4).gain(model, 4, 1.0, 1, dear) < DraftPlan(1, 4).gain(model, 4, 1.0, 1, cheap)


def test_where_passes_cost_as_much_as_tokens_no_draft_gains() -> None:
    model, dear = tiny_ouro(), PassCosts((1.0, 2.0, 4.0, 8.0))
    assert all(DraftPlan(1, length).gain(model, 4, 1.0, 64, dear) < 1.001 for length in range(2, 9))
    assert DraftPlan(1, 4).gain(model, 4, 1.0, 64, PassCosts((1.0, 1.05, 1.1, 1.2))) > 1.3


@pytest.mark.parametrize(
    ("agreement", "host", "wave"),
    [([0.86, 0.99, 0.99, 0.9, 0.95], 1.5, False), ([0.2, 0.4, 0.6, *[0.92] * 7], 0.05, True)],
)
def test_only_a_wave_that_is_clearly_ahead_is_chosen(
    monkeypatch: pytest.MonkeyPatch, agreement: list[float], host: float, wave: bool
) -> None:
    """What the host adds to a tick is told roughly, and with a small model it is most of the cost."""
    model, rule, num_loops = tiny_huginn(), SelfDraft(), 32 if wave else 12
    monkeypatch.setattr(passes, "_measure", lambda model, batch: PassCosts((1.0, 1.04, 1.1, 1.18), host, 0.3, 0.3))
    draft._known(model)[num_loops, rule.candidates(num_loops)] = [draft.Agreement(right) for right in agreement]
    plan = rule.plan(model, num_loops, waves=None)
    assert plan is not None and plan.wave is wave


@pytest.mark.parametrize(("agreement", "loops"), [([0.917, 0.954, 0.991, 0.991, 0.954], 1), ([0.5, 0.6, 0.99, 0.99, 0.99], 3)])
def test_drafts_are_deeper_only_where_that_is_clearly_ahead(
    monkeypatch: pytest.MonkeyPatch, agreement: list[float], loops: int
) -> None:
    """Two tokens of two dozen say little about the loops; two more loops of each draft cost for sure."""
    model, rule = tiny_huginn(), SelfDraft()
    monkeypatch.setattr(passes, "_measure", lambda model, batch: PassCosts((1.0, 1.27, 1.51, 1.58), 3.0, 1.6, 1.7))
    draft._known(model)[12, rule.candidates(12)] = [draft.Agreement(right) for right in agreement]
    plan = rule.plan(model, 12)
    assert plan is not None and plan.loops == loops
