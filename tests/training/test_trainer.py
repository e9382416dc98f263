"""The trainer on models too small to learn anything: mechanics only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loopcd.training import train
from loopcd.training.recipes import Recipe, recipe_named
from loopcd.training.trainer import Display, Pace, Trainer
from training.small import TOKENIZER, small_recipe

PACE = Pace(log_every=1, measure_every=None, measured=2, save_every=1e9)


def trainer_of(recipe: Recipe, out: Path, pace: Pace = PACE) -> Trainer:
    return Trainer(recipe, TOKENIZER, out, pace, seed=0, compiled=False)


def run(trainer: Trainer, resume: bool = False) -> Path:
    with Display("test", quiet=True) as display:
        return trainer.run(resume, display)


@pytest.mark.parametrize("name", ["tiny-huginn", "tiny-ouro"])
def test_the_loss_falls_and_the_model_is_saved(name: str, tmp_path: Path) -> None:
    recipe = small_recipe(name, tokens=8_000)
    trainer = trainer_of(recipe, tmp_path)
    model_folder = run(trainer)
    losses = [record["loss"] for record in trainer.folder.read_log() if "loss" in record]
    assert sum(losses[-3:]) < sum(losses[:3])
    loaded = recipe.architecture.from_pretrained(model_folder)
    for key, value in trainer.model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value)
    assert trainer.folder.read_run()["seed"] == 0
    assert any("accuracy" in record for record in trainer.folder.read_log())


class Killed(Exception):
    pass


def test_a_killed_run_continues_to_the_same_weights(tmp_path: Path) -> None:
    recipe = small_recipe("tiny-huginn", tokens=3000)
    whole = run(trainer_of(recipe, tmp_path / "whole"))
    interrupted = trainer_of(recipe, tmp_path / "cut")
    step, interrupted_step = interrupted._step, 0

    def dying_step(batch: object) -> None:
        nonlocal interrupted_step
        interrupted_step += 1
        if interrupted_step == 3:
            # The batch was given out but not trained on: it must come again.
            interrupted.position.batch -= 1
            raise Killed
        step(batch)  # pyright: ignore[reportArgumentType]

    interrupted._step = dying_step
    with pytest.raises(Killed):
        run(interrupted)
    continued = run(trainer_of(recipe, tmp_path / "cut"), resume=True)
    one, other = load_file(whole / "model.safetensors"), load_file(continued / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    recipe = small_recipe("tiny-huginn", tokens=600)
    run(trainer_of(recipe, tmp_path))
    with pytest.raises(ValueError, match="holds a run already"):
        run(trainer_of(recipe, tmp_path))


def test_minutes_end_a_run_early(tmp_path: Path) -> None:
    trainer = trainer_of(small_recipe("tiny-huginn", tokens=10**9), tmp_path, replace(PACE, minutes=0.01))
    run(trainer)
    assert trainer.progress == 1.0 and trainer.position.tokens < 10**6


def test_snapshots_are_kept_at_their_tokens(tmp_path: Path) -> None:
    trainer = trainer_of(small_recipe("tiny-huginn", 3000), tmp_path, replace(PACE, snapshots=(1000, 2000)))
    run(trainer)
    names = sorted(folder.name for folder in (tmp_path / "snapshots").iterdir())
    assert names == ["tokens-000001000", "tokens-000002000"]
    assert (tmp_path / "snapshots" / names[0] / "model.safetensors").exists()


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"minutes .*-1"):
        train("tiny-huginn", tmp_path, minutes=-1)
    with pytest.raises(ValueError, match="one of tiny-huginn, tiny-ouro, tiny-cue, got 'gpt'"):
        recipe_named("gpt", TOKENIZER)
