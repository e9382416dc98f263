"""The scripts of examples/ run, and say what they promise. The one that needs a server is run in tests/serving/vllm."""

import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch

import loopcd
from tools import tiny_huginn, tiny_ouro

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_there_are_five() -> None:
    names = ["compare_methods.py", "decode.py", "own_method.py", "serve_and_query.py", "trace_a_token.py"]
    assert sorted(each.name for each in EXAMPLES.glob("*.py")) == names


@pytest.mark.slow
def test_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "decode.py")
    greedy, contrasted, *streamed = capsys.readouterr().out.splitlines()
    assert greedy.startswith("Greedy: 'Emma has 10 + 5 = 15 beads.\\n#### 15'")
    assert contrasted.startswith("LoopCD: 'Emma has 10 - 5 = 5 beads.\\n#### 5'")
    assert streamed[:2] == [" Emma has 10 - 5 = 5 beads.", "#### 5"]


@pytest.mark.slow
def test_compare_methods(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "compare_methods.py", 8)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["greedy", "loopcd", "loopcd:strength=0.5", "loopguidance"]
    assert all(line.endswith("against greedy") and line.count("%") == 6 for line in lines)


@pytest.mark.slow
def test_trace_a_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mpl.use("agg")
    run(monkeypatch, "trace_a_token.py", tmp_path / "token.png")
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("token ") and len(lines) >= 2
    assert (tmp_path / "token.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_own_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "own_method.py")
    assert "#### " in capsys.readouterr().out


@pytest.mark.parametrize("make", [tiny_huginn, tiny_ouro])
def test_the_rule_is_the_mean_that_it_says(make: Any) -> None:
    """In a batch, alone, and as transformers' `custom_generate`; weight 0 is greedy."""
    rule = runpy.run_path(str(EXAMPLES / "own_method.py"))["LastTwo"]
    model, prompts = make(3), [[5, 6, 7], [8, 9]]
    made = loopcd.generate(model, None, prompts, rule(0.5), max_new_tokens=6)
    assert made == [loopcd.generate(model, None, [each], rule(0.5), max_new_tokens=6)[0] for each in prompts]
    plain = loopcd.generate(model, None, prompts, loopcd.Greedy(), max_new_tokens=6)
    assert [each.token_ids for each in loopcd.generate(model, None, prompts, rule(0.0), max_new_tokens=6)] == [
        each.token_ids for each in plain
    ]
    said = loopcd.loop_logits(model, torch.tensor(prompts[:1]))[0, -2:, -1]  # [2, vocab], of the first token
    assert made[0].token_ids[0] == int(said.mean(dim=0).argmax())
    out = model.generate(torch.tensor(prompts[:1]), custom_generate=rule(0.5), do_sample=False, max_new_tokens=6)
    assert out[0, 3:].tolist()[: len(made[0].token_ids)] == made[0].token_ids
