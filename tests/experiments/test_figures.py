"""Effects, dynamics, cards and the trajectory on random models: mechanics only, never whether LoopCD helps."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments import trajectory
from experiments.__main__ import main
from experiments.card import install_trajectory
from experiments.dynamics import dynamics
from experiments.effects import Effect, Setting, effects, grid
from experiments.figures import Extent, add_trajectory, chosen_setting, make_card
from experiments.trajectory import Plan, plan_of, read_trajectory, run_trajectory
from loopcd.decoding import LoopCD
from loopcd.evaluation.tasks import steps
from loopcd.models import LoopedModel
from loopcd.models.names import built_in
from loopcd.training.accuracy import answers, right
from loopcd.training.trainer import Display, Pace, Trainer
from training.small import TOKENIZER, small_recipe

PROBLEMS = steps.problems("steps-easy", "tuning", 6)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never ends its answer."""
    monkeypatch.setattr("loopcd.training.accuracy.LONGEST_ANSWER", 8)


def random_model(name: str) -> LoopedModel:
    torch.manual_seed(1)
    recipe = small_recipe(name)
    model = recipe.architecture(recipe.config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(8)  # pyright: ignore  # loops that differ in what they say
    return model


@pytest.mark.parametrize("name", ["tiny-huginn", "tiny-ouro"])
def test_only_diverging_answers_are_generated_again_and_nothing_is_lost(name: str) -> None:
    model, settings = random_model(name), [Setting(1, 0.9), Setting(1, 0.0)]
    quick = effects(model, TOKENIZER, PROBLEMS, settings)
    greedy_right = right(PROBLEMS, answers(model, TOKENIZER, PROBLEMS))
    for effect, setting in zip(quick, settings, strict=True):
        method = LoopCD(amateur_loop=setting.amateur_loop, strength=setting.strength)
        now_right = right(PROBLEMS, answers(model, TOKENIZER, PROBLEMS, method))
        changes = list(zip(greedy_right, now_right, strict=True))
        assert effect.wrong_to_right == changes.count((False, True))
        assert effect.right_to_wrong == changes.count((True, False))
    assert (quick[1].wrong_to_right, quick[1].right_to_wrong) == (0, 0)  # strength 0 is greedy


@pytest.mark.parametrize("name", ["tiny-huginn", "tiny-ouro"])
def test_dynamics_are_shares_and_the_last_loop_agrees_with_itself(name: str) -> None:
    model = random_model(name)
    made = answers(model, TOKENIZER, PROBLEMS)
    found = dynamics(model, TOKENIZER, PROBLEMS, made)
    assert found.positions == sum(len(each.token_ids) for each in made)
    assert 0 <= found.hard <= 1 and 0 <= found.contested <= 1
    assert len(found.agreement) == model.num_loops and found.agreement[-1] == 1.0


def test_an_effect_with_its_interval_by_hand() -> None:
    effect = Effect(Setting(1, 0.1), problems=100, greedy=0.5, wrong_to_right=9, right_to_wrong=1)
    assert effect.difference == pytest.approx(0.08)
    assert effect.margin == pytest.approx(1.96 * ((0.1 - 0.0064) / 100) ** 0.5)
    assert effect.mcnemar_p == pytest.approx(2 * 11 / 1024)
    assert replace(effect, wrong_to_right=0, right_to_wrong=0).mcnemar_p == 1.0


def test_the_grid_stays_in_the_first_half_of_the_depth() -> None:
    assert {setting.amateur_loop for setting in grid(random_model("tiny-huginn"))} == {1, 2}
    assert {setting.amateur_loop for setting in grid(random_model("tiny-ouro"))} == {1}


def test_between_equal_settings_the_weaker_is_chosen() -> None:
    def effect(strength: float, difference: float) -> dict[str, object]:
        return {"setting": {"amateur_loop": 1, "strength": strength}, "difference": difference}

    assert chosen_setting([effect(0.3, 0.01), effect(0.1, 0.01), effect(0.2, 0.0)]) == Setting(1, 0.1)


def test_a_card_is_made_of_a_run(tmp_path: Path) -> None:
    pace = Pace(log_every=1, measure_every=None, measured=2)
    trainer = Trainer(small_recipe("tiny-ouro", 1500), TOKENIZER, tmp_path / "run", pace, compiled=False)
    with Display("test", quiet=True) as display:
        trainer.run(resume=False, display=display)
    target = tmp_path / "model"
    card = make_card(tmp_path / "run", target, Extent(test=4, tuning=4, read=2), quiet=True).read_text()
    for heading in ("# tiny-ouro", "## Data", "## Training", "## Accuracy by loops run", "## LoopCD", "## Limits"):
        assert heading in card
    assert all(variant in card for variant in steps.related("steps"))
    assert (target / "curves.png").stat().st_size > 0
    before = (target / "figures.json").read_text()
    done = CliRunner().invoke(main, ["card", str(tmp_path / "run"), str(target)])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, f"wrote {target / 'README.md'}"), done.output
    assert "steps: right of 4 by loop" in done.stderr
    assert (target / "figures.json").read_text() == before  # measured once


@pytest.fixture
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "build_tokenizer", lambda: TOKENIZER)
    monkeypatch.setattr(trajectory, "recipe_named", lambda name, tokenizer, tokens: small_recipe(name, tokens))
    monkeypatch.setattr(trajectory, "Pace", partial(Pace, log_every=1))


@pytest.mark.usefixtures("small_recipes")
def test_a_trajectory_measures_every_snapshot_of_every_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(seeds=(0, 1), tokens=2000, first=600, checkpoints=3, problems=2, strengths=(0.1, 0.5))
    run_trajectory(plan, tmp_path, quiet=True, compiled=False)
    records = read_trajectory(tmp_path)
    assert len(records) == 2 * 3 * 2
    assert {(r["seed"], r["tokens"]) for r in records} == {(s, t) for s in (0, 1) for t in plan.snapshots}
    assert all(r["split"] == "tuning" and len(r["effects"]) == 2 for r in records)
    monkeypatch.setattr(trajectory, "plan_of", {"tiny-ouro": plan}.get)
    done = CliRunner().invoke(main, ["trajectory", "tiny-ouro", "--out", str(tmp_path), "--no-compile"])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, f"made {tmp_path / 'trajectory.jsonl'}"), done.output
    assert read_trajectory(tmp_path) == records
    assert json.loads((tmp_path / "plan.json").read_text())["checkpoints"] == 3


def test_snapshots_are_in_geometric_progression() -> None:
    snapshots = Plan(tokens=8000, first=1000, checkpoints=4).snapshots
    assert snapshots == (1000, 2000, 4000, 8000)


@pytest.mark.usefixtures("small_recipes")
def test_the_checkpoint_that_the_rule_picks_is_installed_with_its_trajectory(tmp_path: Path) -> None:
    plan = replace(plan_of("tiny-cue"), seeds=(0, 1), tokens=2000, first=600, checkpoints=2, problems=2, strengths=(0.2,))
    run_trajectory(plan, tmp_path / "run", quiet=True, compiled=False)
    target, extent = tmp_path / "tiny-early", Extent(test=2, tuning=2, read=1)
    _set_gains(tmp_path / "run", {})
    with pytest.raises(ValueError, match="none to install"):
        add_trajectory(tmp_path / "run", target, extent, quiet=True)
    assert not target.exists()
    _set_gains(tmp_path / "run", {(0, 600): 0.5, (1, 600): 0.6})
    card = add_trajectory(tmp_path / "run", target, extent, quiet=True).read_text()
    for part in ("# tiny-early", "python -m experiments trajectory tiny-cue", "a model still learning", "seed 1 at 600 tokens"):
        assert part in card
    assert "| steps-cue-shift |" in card and "steps-easy" not in card
    snapshot = tmp_path / "run/seed-1/snapshots/tokens-000000600/model.safetensors"
    assert (target / "model.safetensors").read_bytes() == snapshot.read_bytes()
    assert (target / "trajectory.png").stat().st_size > 0
    with pytest.raises(ValueError, match=r"measured on steps-cue, steps-cue-shift, but .* trained on steps$"):
        install_trajectory(tmp_path / "run", built_in()["tiny-ouro"])


def _set_gains(run: Path, gains: dict[tuple[int, int], float]) -> None:
    """Let LoopCD gain so much on the shifted variant at these seeds and tokens, and nothing elsewhere."""
    records = read_trajectory(run)
    for record in records:
        gain = gains.get((record["seed"], record["tokens"]), 0.0) if record["variant"] == "steps-cue-shift" else 0.0
        record["effects"][0] |= {"difference": gain, "margin": 0.1}
    (run / "trajectory.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
