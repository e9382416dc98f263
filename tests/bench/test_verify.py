"""`loopcd verify` says that a whole model is right, and finds each way in which one is broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from loopcd.bench.verify import Verification, verify
from loopcd.cli import main
from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.rounds import Rounds
from loopcd.models import stages
from loopcd.models.slots import Slot
from tools import MAKERS, rewrite, save_model, tiny_ouro

Patch = pytest.MonkeyPatch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", tiny_ouro(eos_token_id=258))


def run(folder: Path, **options: Any) -> Verification:
    return verify(str(folder), device="cpu", tokens=8, say=lambda _: None, **options)


def wrong(folder: Path) -> list[str]:
    return [check.name for check in run(folder).checks if not check.right]


@pytest.mark.parametrize("family", MAKERS)
def test_a_whole_model_is_right(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", MAKERS[family](eos_token_id=258))
    assert wrong(folder) == []


def test_a_whole_model_is_right_in_16_bits(folder: Path) -> None:
    assert [check for check in run(folder, dtype="bfloat16").checks if not check.right] == []


def test_the_command(folder: Path) -> None:
    done = CliRunner().invoke(main, ["verify", str(folder), "--device", "cpu", "--tokens", "4", "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["right"] and len(told["checks"]) == 10
    shown = CliRunner().invoke(main, ["verify", str(folder), "--device", "cpu", "--tokens", "4"])
    assert shown.exit_code == 0 and "All is right." in shown.stdout
    rewrite(folder, lambda weights: weights.pop(next(iter(weights))))
    broken = CliRunner().invoke(main, ["verify", str(folder), "--device", "cpu"])
    assert broken.exit_code == 1 and "WRONG  files" in broken.stdout and "lacks weights" in broken.stdout


def test_a_task_that_cannot_be_run_is_refused_first(folder: Path, tmp_path: Path) -> None:
    asked = ["verify", str(folder), "--device", "cpu", "--task", "gsm8k", "--data", str(tmp_path / "nowhere")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 1 and "there is no such folder" in done.stderr and "loading" not in done.stderr


def test_options_of_a_task_want_one(folder: Path) -> None:
    done = CliRunner().invoke(main, ["verify", str(folder), "--limit", "5"])
    assert done.exit_code == 2 and "--limit has no use without --task" in done.stderr


def _nan(weights: dict[str, torch.Tensor]) -> None:
    weights[next(iter(weights))].view(-1)[3] = float("nan")


@pytest.mark.parametrize("damage", [lambda weights: weights.pop(next(iter(weights))), _nan])
def test_damaged_weights(folder: Path, damage: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    rewrite(folder, damage)
    assert wrong(folder) == ["files"]


def test_tokens_that_the_model_does_not_have(folder: Path) -> None:
    tiny_ouro(vocab_size=200, pad_token_id=3, eos_token_id=2).save_pretrained(folder)
    assert "special tokens" in wrong(folder)


def test_a_cache_that_forgets(folder: Path, monkeypatch: Patch) -> None:
    update = Slot.update

    def forgetful(self: Any, key: Any, value: Any, span: Any = None, *args: Any, **options: Any) -> Any:
        keys, values = update(self, key, value, span, *args, **options)
        return keys, values.roll(1, dims=2) if keys.shape[2] > key.shape[2] else values

    monkeypatch.setattr(Slot, "update", forgetful)
    assert "cached = uncached" in wrong(folder)


def test_padding_that_is_seen(folder: Path, monkeypatch: Patch) -> None:
    mask = stages.causal_mask
    monkeypatch.setattr(
        stages, "causal_mask", lambda span, device, valid, implementation: mask(span, device, None, implementation)
    )
    assert "batch = alone" in wrong(folder)


def test_drafts_that_are_always_believed(folder: Path, monkeypatch: Patch) -> None:
    told = Rounds._told

    def believing(self: Any, reading: Any, scores: Any, plain: bool) -> Any:
        best, near = told(self, reading, scores, plain)
        return ([[(token + 1) % 200 for token in row] for row in best] if best and reading.count > 1 else best), near

    monkeypatch.setattr(Rounds, "_told", believing)
    assert wrong(folder) == ["drafted = undrafted"]


def test_an_amateur_of_the_wrong_loop(folder: Path, monkeypatch: Patch) -> None:
    begin = EarlyLoop.__init__
    monkeypatch.setattr(EarlyLoop, "__init__", lambda self, model, loop, coda: begin(self, model, model.num_loops - 1, coda))
    found = {check.name: check for check in verify(str(folder), device="cpu", tokens=40, say=lambda _: None).checks}
    assert not found["LoopCD = its formula"].right
