"""`loopcd demo`: what it says follows from what it measures."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loopcd.cli import demo as module
from loopcd.cli import main
from loopcd.cli.demo import NEXT, Drafted, Effect, drafted
from tools import byte_tokenizer, tiny_ouro


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.05, 0.2, "LoopCD helps."), (-0.05, 0.2, "No gain."), (-0.2, -0.01, "LoopCD loses a little."), (0.0, 0.1, "No gain.")],
)
def test_the_sentence_follows_the_interval(low: float, high: float, said: str) -> None:
    sentence = Effect(200, 0.25, 0.375, 0.125, low, high).sentence()
    assert sentence.startswith(f"{said} Right by greedy 25.0 %, by LoopCD 37.5 %: +12.5 points")
    assert sentence.endswith(f"95 % interval [{100 * low:+.1f}, {100 * high:+.1f}].")


def test_tokens_that_differ_are_not_called_the_same() -> None:
    assert Drafted("greedy, drafted", 8, 8, 1.94).sentence().strip() == "greedy, drafted: the same tokens, × 1.9 greedy's speed"
    assert "the same tokens in 7 of 8 texts" in Drafted("greedy, drafted", 8, 7, 1.9).sentence()


def test_drafts_are_compared_with_their_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMED", 24)
    found = drafted(tiny_ouro(2, vocab_size=260, num_hidden_layers=1, total_ut_steps=3), byte_tokenizer(), ["ab", "cd"])
    assert [(each.method, each.texts, each.same) for each in found] == [("greedy, drafted", 2, 2), ("LoopCD, drafted", 2, 2)]
    assert all(each.times_greedy > 0 for each in found)


def test_commands_are_named_as_they_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [".venv/bin/loopcd", "demo"])
    monkeypatch.setattr(module, "which", lambda name: None)
    assert module._program() == ".venv/bin/"
    monkeypatch.setattr(module, "which", lambda name: "/usr/bin/loopcd")
    assert module._program() == ""


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 16)
    monkeypatch.setattr(module, "TIMED", 24)
    options = ["demo", "--problems", "10", "--texts", "1", "--out", str(tmp_path / "demo")]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    for part in ("1. tiny-early", "2. tiny-huginn", "3. The same tokens", "greedy, drafted", "LoopCD, drafted", "#### "):
        assert part in done.stdout
    assert [command for command, _ in NEXT if command in done.stdout] == [command for command, _ in NEXT]
    page = (tmp_path / "demo" / "lens.html").read_text()
    assert str(tmp_path / "demo" / "lens.html") in done.stdout and "of the 16 problems of steps-cue-shift" in page
    told: Any = json.loads(CliRunner().invoke(main, [*options, "--json"]).stdout)  # what was evaluated is not run again
    assert set(told) == {"learning", "finished", "drafts", "page"} and told["learning"]["items"] == 10
