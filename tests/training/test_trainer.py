"""The trainer on models too small to learn anything: mechanics only."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from loopcd.training import objectives, train
from loopcd.training import trainer as trainer_module
from loopcd.training.checkpoints import RunFolder
from loopcd.training.recipes import Recipe, recipe_named
from loopcd.training.trainer import Display, Pace, Trainer
from training.small import TOKENIZER, small_recipe

PACE = Pace(log_every=1, measure_every=None, measured=2, save_every=1e9)
SHORT = small_recipe("tiny-huginn", tokens=3000)


def trainer_of(recipe: Recipe, out: Path, pace: Pace = PACE, seed: int = 0) -> Trainer:
    return Trainer(recipe, TOKENIZER, out, pace, seed, compiled=False)


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


@pytest.fixture(scope="module", autouse=True)
def small_pools() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loopcd.training.rows.POOL", 32)  # a few batches: a run goes through several
        yield


@pytest.fixture(scope="module", autouse=True)
def interruptible() -> Iterator[None]:
    """Also where the tests are run in the background, where shells have Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(small_pools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a run that nothing stopped."""
    return run(trainer_of(SHORT, tmp_path_factory.mktemp("whole")))


def assert_same_weights(one: Path, other: Path) -> None:
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[key], others[key]) for key in weights)


def before_call(number: int, owner: Any, name: str, happening: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """Let something happen at the beginning of a function's call with this number."""
    function, calls = getattr(owner, name), count(1)

    def called(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            happening()
        return function(*arguments, **options)

    patch.setattr(owner, name, called)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def saved_step(trainer: Trainer) -> int:
    return torch.load(trainer.folder.state_file, weights_only=True)["position"]["step"]


@pytest.mark.parametrize(
    ("call", "owner", "name"),
    [
        (2, trainer_module, "pool_of_batches"),
        (3, objectives, "weighted_mean"),
        (3, torch.optim.AdamW, "step"),  # Muon has stepped
        (3, trainer_module, "replace"),  # the weights are new, the position is not
        (3, Trainer, "_log"),
        (1, RunFolder, "save_model"),  # of a snapshot
        (1, RunFolder, "save_state"),  # of the end
        (1, Trainer, "_measure"),
    ],
)
def test_a_run_interrupted_at_any_moment_continues_to_the_same_weights(
    call: int, owner: Any, name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = replace(PACE, snapshots=(1000,))
    interrupted = trainer_of(SHORT, tmp_path / "cut", pace)
    with monkeypatch.context() as patch:
        before_call(call, owner, name, interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            run(interrupted)
    assert saved_step(interrupted) == interrupted.position.step > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same_weights(whole, run(trainer_of(SHORT, tmp_path / "cut", pace), resume=True))
    assert interrupted.folder.snapshot_at(1000).exists()


def test_half_an_update_is_not_saved(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise MemoryError

    broken = trainer_of(SHORT, tmp_path / "cut", replace(PACE, save_every=0))
    with monkeypatch.context() as patch:
        before_call(3, torch.optim.AdamW, "step", full, patch)
        with pytest.raises(MemoryError):
            run(broken)
    assert saved_step(broken) == 2
    assert_same_weights(whole, run(trainer_of(SHORT, tmp_path / "cut"), resume=True))


def test_after_a_kill_the_log_goes_on_from_the_saved_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = trainer_of(SHORT, tmp_path)
    with monkeypatch.context() as patch:
        before_call(3, objectives, "weighted_mean", interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            run(cut)
    saved = cut.folder.state_file.read_bytes()
    run(trainer_of(SHORT, tmp_path), resume=True)
    whole = cut.folder.log_file.read_bytes()
    cut.folder.state_file.write_bytes(saved)
    cut.folder.log_file.write_bytes(whole + b'{"step": 9, "tok')  # killed while a line was written, long after the state was
    run(trainer_of(SHORT, tmp_path), resume=True)
    steps = [each["step"] for each in map(json.loads, whole.splitlines()) if "loss" in each]
    assert steps == list(range(1, len(steps) + 1))
    assert [each["step"] for each in cut.folder.read_log() if "loss" in each] == steps
    cut.folder.state_file.unlink()  # killed before the first was saved
    run(trainer_of(SHORT, tmp_path))
    assert [each["step"] for each in cut.folder.read_log() if "loss" in each] == steps


def test_outside_of_the_main_thread_there_is_nothing_to_hold(whole: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        assert_same_weights(whole, other.submit(run, trainer_of(SHORT, tmp_path / "other")).result())


def infinite_gradients(loss: Tensor) -> Tensor:
    loss.register_hook(lambda gradient: gradient * inf)
    return loss


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(lambda loss: loss * nan, "loss is nan at step 3"), (infinite_gradients, "norm of the gradients is nan at step 3")],
)
def test_what_is_not_finite_leaves_the_last_good_state(
    spoil: Callable[[Tensor], Tensor], said: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, calls = objectives.RecurrentDepth.__call__, count(1)

    def spoilt(*arguments: Any) -> Tensor:
        loss = objective(*arguments)
        return spoil(loss) if next(calls) == 3 else loss

    trainer = trainer_of(SHORT, tmp_path / "cut")
    with monkeypatch.context() as patch:
        patch.setattr(objectives.RecurrentDepth, "__call__", spoilt)
        with pytest.raises(RuntimeError, match=said):
            run(trainer)
    assert saved_step(trainer) == 2
    assert_same_weights(whole, run(trainer_of(SHORT, tmp_path / "cut"), resume=True))


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    recipe = small_recipe("tiny-huginn", tokens=600)
    run(trainer_of(recipe, tmp_path))
    with pytest.raises(ValueError, match="holds a run already"):
        run(trainer_of(recipe, tmp_path))


def test_what_was_never_begun_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run to resume"):
        run(trainer_of(SHORT, tmp_path / "other"), resume=True)
    assert not (tmp_path / "other").exists()


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path: Path) -> None:
    recipe = small_recipe("tiny-huginn", tokens=600)
    begun = trainer_of(recipe, tmp_path)
    run(begun)
    had = begun.folder.run_file.read_text()
    slower = replace(recipe, optimiser=replace(recipe.optimiser, peak_rate=0.001))
    for other, said in (
        (trainer_of(recipe, tmp_path, seed=7), r"seed 7: the run in .* has 0"),
        (trainer_of(recipe, tmp_path, replace(PACE, minutes=5)), r"minutes 5: the run in .* has None"),
        (trainer_of(replace(recipe, tokens=900), tmp_path), r"recipe\.tokens 900: the run in .* has 600"),
        (trainer_of(slower, tmp_path), r"recipe\.optimiser\.peak_rate 0\.001: the run in .* has 0\.003"),
        (trainer_of(small_recipe("tiny-ouro"), tmp_path), "recipe.name 'tiny-ouro': the run in .* has 'tiny-huginn'"),
    ):
        with pytest.raises(ValueError, match=said):
            run(other, resume=True)
    assert begun.folder.run_file.read_text() == had
    run(trainer_of(replace(recipe, description="the same in other words"), tmp_path), resume=True)


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
