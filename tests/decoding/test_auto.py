"""LoopCD with an amateur made of several loops: the rule by hand, and whole texts against a slow reading."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import loopcd
from decoding.runs import tokens_of
from decoding.slow import Choice, Rule, Slow, Text, contrast, decode
from loopcd.cli import main
from loopcd.decoding import rules
from loopcd.decoding.auto import candidate_loops
from loopcd.evaluation.plan import parse_methods
from loopcd.models import LoopedModel
from tools import left_padded, random_ids, save_model


def test_the_mean_is_a_geometric_one() -> None:
    early = torch.tensor([[[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]]).log()  # [rows, loops, n]
    found = rules.mean_amateur(early, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    assert found.exp().tolist()[0] == pytest.approx([(0.9 * 0.1 * 0.5) ** (1 / 3)] * 2)


@pytest.mark.parametrize(("loops", "wanted"), [(2, [1]), (3, [1]), (4, [1, 2]), (9, [1, 2, 3, 4])])
def test_candidates_are_the_first_half(loops: int, wanted: list[int]) -> None:
    assert list(candidate_loops(loops)) == wanted


# Whole texts


def auto_rule(slow: Slow, strength: float, plausibility: float = 0.1, coda: str = "shared") -> Rule:
    """Everything in float64 and written out."""

    def rule(ids: Text) -> Choice:
        early = [slow.early(ids, loop, coda) for loop in range(1, slow.loops // 2 + 1)]
        return contrast(slow.said(ids, slow.loops), sum(early) / len(early), strength, plausibility)  # pyright: ignore

    return rule


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


def test_a_coda_of_its_own(huginn: LoopedModel) -> None:
    ids = random_ids(1, 5)
    wanted = decode(ids[0].tolist(), 6, auto_rule(Slow(huginn), 0.9, 0.02, "own"))
    assert tokens_of(huginn, ids, loopcd.LoopCD("auto", 0.9, 0.02, "own"), count=6) == [wanted]


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
    with pytest.raises(ValueError, match="several loops"):
        loopcd.LoopCD("auto").resolve(ouro)
    with pytest.raises(ValueError, match="LoopCD needs 2 or more"):
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
