"""LoopCD with an amateur chosen at every token: the rule by hand, and whole texts against a slow reading."""

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import loopcd
from decoding.runs import tokens_of
from decoding.slow import CLEAR, Choice, Rule, Slow, contrast, decode, probabilities
from loopcd.cli import main
from loopcd.decoding import rules
from loopcd.decoding.auto import candidate_loops
from loopcd.evaluation.specs import parse_methods
from loopcd.models import LoopedModel
from tools import left_padded, random_ids, save_model

ALL = torch.tensor([[True, True]])


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


# The rule


def test_divergence_by_hand() -> None:
    assert float(rules.jensen_shannon(logs(0.5, 0.5), logs(0.5, 0.5), ALL[0])) == pytest.approx(0, abs=1e-7)
    # p = (1, 0), q = (½, ½), m = (¾, ¼): ½ ln(4/3) + ½ (½ ln(2/3) + ½ ln 2)
    wanted = 0.5 * log(4 / 3) + 0.5 * (0.5 * log(2 / 3) + 0.5 * log(2))
    assert float(rules.jensen_shannon(logs(1.0, 1e-30), logs(0.5, 0.5), ALL[0])) == pytest.approx(wanted, abs=1e-6)
    assert float(rules.jensen_shannon(logs(1.0, 1e-30), logs(1e-30, 1.0), ALL[0])) == pytest.approx(log(2), abs=1e-6)


def test_only_plausible_tokens_count() -> None:
    allowed = torch.tensor([True, True, False])
    one, other = torch.tensor([2.0, 1.0, 9.0]), torch.tensor([1.0, 2.0, -9.0])
    found = rules.jensen_shannon(one, other, allowed)
    assert float(found) == pytest.approx(float(rules.jensen_shannon(one[:2], other[:2], ALL[0])), abs=1e-6)


def test_the_most_divergent_loop_is_the_amateur() -> None:
    expert = torch.stack([logs(0.6, 0.4), logs(0.6, 0.4)])
    early = torch.stack([torch.stack([logs(0.5, 0.5), logs(0.9, 0.1)]), torch.stack([logs(0.1, 0.9), logs(0.6, 0.4)])])
    found = rules.most_divergent(early, expert, ALL.expand(2, 2))  # [rows, loops, n]
    torch.testing.assert_close(found, torch.stack([logs(0.9, 0.1), logs(0.1, 0.9)]))
    level = rules.most_divergent(early[:, :1].expand(2, 3, 2), expert, ALL.expand(2, 2))
    torch.testing.assert_close(level, early[:, 0])


@pytest.mark.parametrize(("loops", "wanted"), [(2, [1]), (3, [1]), (4, [1, 2]), (9, [1, 2, 3, 4])])
def test_candidates_are_the_first_half(loops: int, wanted: list[int]) -> None:
    assert list(candidate_loops(loops)) == wanted


# Whole texts


def auto_rule(slow: Slow, strength: float, plausibility: float = 0.1, coda: str = "own") -> Rule:
    """Everything in float64 and written out; clear if every loop that is nearly the most divergent gives the same token."""

    def said(ids: list[int], loop: int) -> torch.Tensor:
        return slow.said(ids, loop) if coda == "own" else slow.said_through_the_experts_coda(ids, loop)

    def rule(ids: list[int]) -> Choice:
        expert = slow.said(ids, slow.loops)
        p = probabilities(expert)
        inside = [v for v in range(len(p)) if p[v] >= plausibility * max(p)]
        candidates = [said(ids, loop) for loop in range(1, slow.loops // 2 + 1)]
        divergences = [_divergence(probabilities(expert[inside]), probabilities(early[inside])) for early in candidates]
        near = [early for early, each in zip(candidates, divergences, strict=True) if each > max(divergences) - CLEAR / 10]
        choices = [contrast(expert, early, strength, plausibility) for early in near]
        return choices[0][0], all(choice == (choices[0][0], True) for choice in choices)

    return rule


def _divergence(p: list[float], q: list[float]) -> float:
    m = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return sum(x * log(x / z) + y * log(y / z) for x, y, z in zip(p, q, m, strict=True)) / 2


@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_are_those_of_a_slow_reading(model: LoopedModel, seed: int) -> None:
    ids = random_ids(1, 5, seed=seed)
    slow = Slow(model)
    wanted = decode(ids[0].tolist(), 8, auto_rule(slow, 0.9, 0.02))
    assert tokens_of(model, ids, loopcd.LoopCD("auto", 0.9, 0.02), count=8) == [wanted]


def test_it_is_no_fixed_loop(own_model: LoopedModel) -> None:
    ids = random_ids(1, 5)
    fixed = [tokens_of(own_model, ids, loopcd.LoopCD(loop, 0.9, 0.02), count=20) for loop in (1, 2)]
    assert tokens_of(own_model, ids, loopcd.LoopCD("auto", 0.9, 0.02), count=20) not in fixed


def test_the_shared_coda(huginn: LoopedModel) -> None:
    ids = random_ids(1, 5)
    wanted = decode(ids[0].tolist(), 6, auto_rule(Slow(huginn), 0.9, 0.02, "shared"))
    assert tokens_of(huginn, ids, loopcd.LoopCD("auto", 0.9, 0.02, "shared"), count=6) == [wanted]


def test_batches_lazy_or_not_and_drafts_change_nothing(own_model: LoopedModel) -> None:
    rows = [random_ids(1, length, seed=length)[0] for length in (3, 7, 5)]
    ids, mask = left_padded(rows)
    method = loopcd.LoopCD("auto", 0.9, 0.02)
    alone = [tokens_of(own_model, row[None], method)[0] for row in rows]
    assert tokens_of(own_model, ids, method, mask=mask) == alone
    assert tokens_of(own_model, ids, loopcd.LoopCD("auto", 0.9, 0.02, lazy=False), mask=mask) == alone
    for loops in (1, 2, 3):
        drafted = loopcd.LoopCD("auto", 0.9, 0.02, draft=loopcd.SelfDraft(loops, 3, fallback=False))
        assert tokens_of(own_model, ids, drafted, mask=mask) == alone


def test_no_strength_is_greedy_and_two_loops_are_the_fixed_one(own_model: LoopedModel) -> None:
    ids = random_ids(1, 5)
    assert tokens_of(own_model, ids, loopcd.LoopCD("auto", 0.0)) == tokens_of(own_model, ids, loopcd.Greedy())
    auto, fixed = (tokens_of(own_model, ids, loopcd.LoopCD(loop, 0.9, 0.02), num_loops=2) for loop in ("auto", 1))
    assert auto == fixed


def test_with_early_exit(own_model: LoopedModel) -> None:
    ids = random_ids(1, 5)
    never = loopcd.LoopCD("auto", 0.9, 0.02, exit=loopcd.EarlyExit(threshold=0.0, min_loops=3))
    assert tokens_of(own_model, ids, never) == tokens_of(own_model, ids, loopcd.LoopCD("auto", 0.9, 0.02))
    with pytest.raises(ValueError, match="min_loops=2 could leave at or before amateur_loop=2"):
        tokens_of(own_model, ids, loopcd.LoopCD("auto", exit=loopcd.EarlyExit(min_loops=2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"amateur_loop": "late"}, "amateur_loop='late'"), ({"amateur_loop": "auto", "where": "hard"}, "where='hard'")],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loopcd.LoopCD(**settings)


def test_where_one_loop_is_needed(ouro: LoopedModel) -> None:
    with pytest.raises(ValueError, match="another at every token"):
        loopcd.LoopCD("auto").resolve(ouro)
    with pytest.raises(ValueError, match="from 1 to 0"):
        tokens_of(ouro, random_ids(1, 3), loopcd.LoopCD("auto"), num_loops=1)
    assert loopcd.LoopCD("auto").settled(ouro) == loopcd.LoopCD("auto", 0.2)


def test_on_the_command_line(tmp_path: Path, ouro: LoopedModel, tokenizer: Any) -> None:
    folder = save_model(tmp_path / "model", ouro)
    shared = ["generate", "some text", "--model", str(folder), "--max-new-tokens", "6", "--strength", "0.9"]
    made = CliRunner().invoke(main, [*shared, "--amateur-loop", "auto", "--json"])
    assert made.exit_code == 0, made.output
    wanted = loopcd.generate(ouro, tokenizer, "some text", loopcd.LoopCD("auto", 0.9), max_new_tokens=6)
    assert json.loads(made.stdout)["results"][0]["token_ids"] == wanted.token_ids
    assert parse_methods("loopcd:amateur_loop=auto")[0].build() == loopcd.LoopCD("auto")
    wrong = CliRunner().invoke(main, [*shared, "--amateur-loop", "late"])
    assert wrong.exit_code == 2 and "'late' is neither the number of a loop nor auto" in wrong.stderr
