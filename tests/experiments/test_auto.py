"""An amateur chosen at every token: the rules, what they would change, and the whole measurement on a tiny model."""

from itertools import chain
from math import log
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import loopcd
from analysis.labs import Counting
from decoding.runs import tokens_of
from experiments import auto
from experiments.__main__ import main
from experiments.auto import ChosenAmateur, Measured, Variant, contest, divergence, jensen_shannon, peak, variants
from experiments.contests import Contests, at_loop
from hand_traces import hand_trace
from loopcd.analysis.elements import ELEMENTS
from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.decoding import rules
from loopcd.decoding.auto import candidate_loops
from loopcd.evaluation.plan import MethodSpec
from loopcd.models import LoopedModel
from loopcd.tracing import Written, contrast_choices, trace_texts
from tools import random_ids

ALL = torch.ones(1, 3, dtype=torch.bool)
EXPERT = torch.tensor([[3.0, 2.0, 1.0]])


# The rules


def test_peak_takes_the_loop_where_the_expert_s_choice_led_most() -> None:
    early = torch.tensor([[[2.0, 1.0, 0.0], [5.0, 0.0, 4.0], [3.0, 1.5, 9.0]]])
    assert peak(early, EXPERT, ALL).tolist() == [[2.0, 1.0, 0.0]]  # leads of 1, 1 and −6: the first of equals
    two = torch.tensor([[True, True, False]])
    assert peak(early, EXPERT, two).tolist() == [[5.0, 0.0, 4.0]]  # among the plausible: 1, 5 and 1.5


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_divergence_by_hand() -> None:
    both = torch.tensor([True, True])
    assert float(jensen_shannon(logs(0.5, 0.5), logs(0.5, 0.5), both)) == pytest.approx(0, abs=1e-7)
    # p = (1, 0), q = (½, ½), m = (¾, ¼): ½ ln(4/3) + ½ (½ ln(2/3) + ½ ln 2)
    wanted = 0.5 * log(4 / 3) + 0.5 * (0.5 * log(2 / 3) + 0.5 * log(2))
    assert float(jensen_shannon(logs(1.0, 1e-30), logs(0.5, 0.5), both)) == pytest.approx(wanted, abs=1e-6)
    assert float(jensen_shannon(logs(1.0, 1e-30), logs(1e-30, 1.0), both)) == pytest.approx(log(2), abs=1e-6)
    one, other = torch.tensor([2.0, 1.0, 9.0]), torch.tensor([1.0, 2.0, -9.0])  # the last is not plausible
    found = jensen_shannon(one, other, torch.tensor([True, True, False]))
    assert float(found) == pytest.approx(float(jensen_shannon(one[:2], other[:2], both)), abs=1e-6)


def test_divergence_takes_the_loop_that_is_furthest_from_the_expert() -> None:
    expert, allowed = torch.stack([logs(0.6, 0.4), logs(0.6, 0.4)]), torch.ones(2, 2, dtype=torch.bool)
    early = torch.stack([torch.stack([logs(0.5, 0.5), logs(0.9, 0.1)]), torch.stack([logs(0.1, 0.9), logs(0.6, 0.4)])])
    found = divergence(early, expert, allowed)  # [rows, loops, n]
    torch.testing.assert_close(found, torch.stack([logs(0.9, 0.1), logs(0.1, 0.9)]))
    torch.testing.assert_close(divergence(early[:, :1].expand(2, 3, 2), expert, allowed), early[:, 0])  # of equals the first


@pytest.mark.parametrize(
    ("amateur", "silent"),
    [([9.0, 5.0, 1.0], True), ([9.0, 1.0, 5.0], False), ([1.0, 5.0, 0.0], False), ([2.0, 2.0, 2.0], True)],
)
def test_contest_is_silent_where_both_rank_alike(amateur: list[float], silent: bool) -> None:
    early = torch.tensor([[[7.0, 7.0, 7.0], amateur]])
    assert contest(2)(early, EXPERT, ALL).tolist() == [[0.0] * 3 if silent else amateur]
    two = torch.tensor([[True, True, False]])
    wanted = [0.0] * 3 if amateur[0] >= amateur[1] else amateur
    assert contest(2)(early, EXPERT, two).tolist() == [wanted]


def test_of_two_tokens_contest_changes_none() -> None:
    """Where the amateur ranks two tokens otherwise than the expert, the contrast can only confirm the expert."""
    generator = torch.Generator().manual_seed(0)
    expert, early = torch.randn(200, 2, generator=generator), 5 * torch.randn(200, 1, 2, generator=generator)
    allowed = torch.ones(200, 2, dtype=torch.bool)
    scores = rules.contrast(expert, contest(1)(early, expert, allowed), 0.9, allowed)
    assert (scores.argmax(dim=1) == expert.argmax(dim=1)).all()


# What a rule would change


def test_contests_are_the_contested_positions() -> None:
    sure = [[[0.0, 9.0, 0.0], [0.0, 9.0, 0.0]]]
    two = [[[3.0, 0.0, -9.0], [1.0, 0.5, -9.0]]]
    three = [[[0.0, 1.0, 4.0], [1.0, 1.5, 2.0]]]
    found = Contests.of([hand_trace(sure), hand_trace(two + sure + three), hand_trace(three)])
    assert found.text.tolist() == [1, 1, 2] and found.ids.tolist() == [[0, 1, 0], [2, 1, 0], [2, 1, 0]]
    assert found.allowed.tolist() == [[True, True, False], [True] * 3, [True] * 3]
    # at strength 0.3 with loop 1: 1 − 0.9 < 0.5; 2 − 1.2 < 1.5 − 0.3
    assert found.choices(at_loop(1), range(1, 2), 0.3).tolist() == [1, 1, 1]
    assert found.changed(at_loop(1), range(1, 2), 0.3) == [1, 2] and found.changed(at_loop(1), range(1, 2), 0.0) == []
    level = [[[0.0] * 70, [0.0] * 70]]  # 70 plausible tokens, of which a trace keeps 64
    assert Contests.of([hand_trace(sure), hand_trace(level)]).changed(at_loop(1), range(1, 2), 0.3) == [1]
    assert len(Contests.of([hand_trace(sure)])) == 0 and Contests.of([]).changed(at_loop(1), range(1, 2), 0.3) == []


def test_contests_choose_as_traces_do(own_model: LoopedModel) -> None:
    items = [
        Written(random_ids(1, 4, seed=seed)[0].tolist(), random_ids(1, 12, seed=9 - seed)[0].tolist()) for seed in range(3)
    ]
    traces = list(trace_texts(own_model, None, items))
    contests = Contests.of(traces)
    for loop, strength in ((1, 0.3), (2, 0.9)):
        by_trace = [contrast_choices(trace, loop, strength)[trace.plausible_count > 1].tolist() for trace in traces]
        assert contests.choices(at_loop(loop), range(1, 3), strength).tolist() == list(chain(*by_trace))
        changed = [
            number for number, trace in enumerate(traces) if (contrast_choices(trace, loop, strength) != trace.winner).any()
        ]
        assert contests.changed(at_loop(loop), range(1, 3), strength) == changed


# Decoding by a rule


@pytest.mark.parametrize(
    "variant", [Variant("peak", 0.9), Variant("mean", 0.5), Variant("contest", 0.9, 1), Variant("divergence", 0.9)]
)
def test_decoding_is_what_the_rule_says_of_each_position(own_model: LoopedModel, variant: Variant) -> None:
    ids = random_ids(1, 6)
    tokens = tokens_of(own_model, ids, ChosenAmateur(variant, 0.05), count=12)[0]
    (trace,) = trace_texts(own_model, None, [Written(ids[0].tolist(), tokens)], plausibility=0.05)
    contests = Contests.of([trace])
    chosen = contests.choices(variant.amateur, candidate_loops(own_model.num_loops), variant.strength)
    assert [token for token, several in zip(tokens, trace.plausible_count > 1, strict=True) if several] == chosen.tolist()


def test_mean_is_loopcd_s_own_auto(own_model: LoopedModel) -> None:
    ids = random_ids(1, 6)
    assert tokens_of(own_model, ids, ChosenAmateur(Variant("mean", 0.9))) == tokens_of(
        own_model, ids, loopcd.LoopCD("auto", 0.9)
    )


# The measurement


def test_variants_and_the_best_of_them() -> None:
    every = variants(4)
    assert len(every) == len(set(every)) and {each.rule for each in every} == {*auto.FIXED, *auto.CHOOSING}
    assert {each.loop for each in every if each.rule == "fixed"} == {1, 2}
    right = {
        Variant("fixed", 0.1, 1): [True, False],
        Variant("fixed", 0.3, 1): [True, True],
        Variant("fixed", 0.2, 2): [True, True],
        Variant("peak", 0.5): [False, False],
    }
    found = Measured([True, False], right, dict.fromkeys(right, 0))
    assert found.best("fixed") == Variant("fixed", 0.2, 2) and found.best("peak") == Variant("peak", 0.5)


def test_the_shortcut_gives_what_whole_runs_give(lab: Laboratory, counting: Counting) -> None:
    """Only answers that a rule changes are generated; the figures are those of running it on all."""
    fixed, chosen = Variant("fixed", 0.1, 1), Variant("mean", 0.1)
    found = auto.measured(lab, "test", [fixed, chosen])
    specs = [MethodSpec("loopcd", (("amateur_loop", loop), ("strength", 0.1))) for loop in (1, "auto")]
    greedy, *whole = lab.answers(GREEDY, *specs)
    assert found.greedy == greedy.right(lab.metric)
    for variant, answers in zip((fixed, chosen), whole, strict=True):
        assert found.right[variant] == answers.right(lab.metric)
        others = sum(a != b for a, b in zip(answers.token_ids, greedy.token_ids, strict=True))
        assert found.changed[variant] == others > 0
    before = counting.prompts
    assert auto.measured(lab, "test", [fixed, chosen]) == found and counting.prompts == before  # all is kept


def test_the_element(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "STRENGTHS", (0.1,))
    result = auto.ELEMENT.compute(lab)
    assert [row[0] for row in result.table.rows] == ["none (greedy)", "fixed (the preset)", *auto.FIXED, *auto.CHOOSING]
    assert "fixed loop" in result.finding.sentence


def test_the_command(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "STRENGTHS", (0.1,))
    monkeypatch.setitem(ELEMENTS, "auto", auto.ELEMENT)  # so that it is taken back
    options = ["--limit", "2", "--max-new-tokens", "4", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, ["auto", "--model", str(folders["ouro"]), *options])
    assert done.exit_code == 0, done.output
    assert f"Made by `python -m experiments auto --model {folders['ouro']}" in (tmp_path / "auto.md").read_text()
