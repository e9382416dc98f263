"""The objectives: loop counts, truncation, and the exit objective against a slow reading of its formula."""

from random import Random

import pytest
import torch

from loopcd.models import LoopedModel
from loopcd.training.objectives import ExpectedExit, RecurrentDepth
from loopcd.training.rows import TextBatch
from training.small import small_recipe

TOKENS = torch.randint(2, 100, (3, 12), generator=torch.Generator().manual_seed(0))
BATCH = TextBatch(TOKENS, torch.ones(TOKENS.shape))


def model_of(name: str) -> LoopedModel:
    torch.manual_seed(0)
    recipe = small_recipe(name)
    return recipe.architecture(recipe.config)


def test_loops_are_log_normal_poisson_with_the_given_mean() -> None:
    objective = RecurrentDepth(mean_loops=8)
    random = Random(0)
    loops = [objective.sample_loops(random) for _ in range(20_000)]
    assert min(loops) == 1
    assert abs(sum(loops) / len(loops) - 8) < 0.15
    assert max(loops) > 20  # a long tail


def test_the_loss_of_full_backpropagation_and_of_truncated_is_the_same_number() -> None:
    model = model_of("tiny-huginn")
    full = RecurrentDepth(mean_loops=4, backpropagated=100, noisy_start=0.0)(model, BATCH, Random(1))
    truncated = RecurrentDepth(mean_loops=4, backpropagated=1, noisy_start=0.0)(model, BATCH, Random(1))
    torch.testing.assert_close(full, truncated)


def test_the_prelude_learns_also_when_early_loops_are_cut_off() -> None:
    model = model_of("tiny-huginn")
    RecurrentDepth(mean_loops=6, backpropagated=1)(model, BATCH, Random(0)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    prelude = next(p for name, p in model.named_parameters() if "prelude" in name and "Wqkv" in name)
    assert prelude.grad is not None and prelude.grad.abs().sum() > 0


def test_a_noisy_start_changes_the_loss_and_its_seed_is_the_steps_own() -> None:
    model, objective = model_of("tiny-huginn"), RecurrentDepth(mean_loops=2, noisy_start=1.0)
    first, again = objective(model, BATCH, Random(3)), objective(model, BATCH, Random(3))
    quiet = RecurrentDepth(mean_loops=2, noisy_start=0.0)(model, BATCH, Random(3))
    assert torch.equal(first, again) and not torch.equal(first, quiet)


def test_expected_exit_is_its_formula() -> None:
    model = model_of("tiny-ouro")
    with torch.no_grad():
        for parameter in model.model.early_exit_gate.parameters():  # pyright: ignore
            parameter.normal_(std=1.0)
        measured = ExpectedExit(entropy=0.3)(model, BATCH, Random(0))
        state, going, total = model.begin(TOKENS), torch.ones(3, 11), torch.zeros(3, 11)
        for loop in range(1, 4):
            state = model.advance(state)
            probability = going if loop == 3 else going * torch.sigmoid(model.gate_logits(state))[:, :-1]  # pyright: ignore
            going = going - probability
            logits = model.head(model.readout(state))[:, :-1].double()
            log_p = logits.log_softmax(-1).gather(-1, TOKENS[:, 1:, None]).squeeze(-1)
            total = total + probability * (-log_p + 0.3 * probability.log())
    torch.testing.assert_close(measured.double(), total.mean(), atol=1e-5, rtol=1e-5)


def test_expected_exit_trains_the_gate() -> None:
    model = model_of("tiny-ouro")
    ExpectedExit()(model, BATCH, Random(0)).backward()
    gate = model.model.early_exit_gate.weight  # pyright: ignore
    assert gate.grad is not None and gate.grad.abs().sum() > 0


def test_expected_exit_needs_a_gate() -> None:
    with pytest.raises(TypeError, match="exit gate"):
        ExpectedExit()(model_of("tiny-huginn"), BATCH, Random(0))


def test_tokens_without_weight_do_not_count() -> None:
    model, objective = model_of("tiny-huginn"), RecurrentDepth(mean_loops=2, noisy_start=0.0)
    weights = torch.ones(TOKENS.shape)
    weights[:, 8:] = 0
    cut = TextBatch(TOKENS[:, :8], torch.ones(3, 8))
    torch.testing.assert_close(objective(model, TextBatch(TOKENS, weights), Random(0)), objective(model, cut, Random(0)))
