"""Muon: updates are close to orthogonal, of AdamW's size, and lower a loss."""

import pytest
import torch

from loopcd.training.optimisers import Muon, orthogonalised, rate_at
from loopcd.training.recipes import Optimiser


@pytest.mark.parametrize("shape", [(2, 8, 24), (3, 24, 8), (1, 16, 16)])
def test_singular_values_come_close_to_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_step_has_the_size_of_the_rate() -> None:
    weight = torch.nn.Parameter(torch.zeros(32, 96))
    weight.grad = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    Muon([weight], lr=0.01, weight_decay=0.0).step()
    assert 0.001 < weight.detach().square().mean().sqrt() < 0.003  # about 0.2 of the rate


def test_it_lowers_a_loss() -> None:
    torch.manual_seed(0)
    weight, goal = torch.nn.Parameter(torch.randn(8, 8)), torch.randn(8, 8)
    optimiser = Muon([weight], lr=0.2, weight_decay=0.0)
    before = (weight - goal).square().mean().item()
    for _ in range(60):
        optimiser.zero_grad()
        (weight - goal).square().mean().backward()
        optimiser.step()
    assert (weight - goal).square().mean().item() < 0.2 * before


def test_the_rate_rises_then_falls_to_its_end() -> None:
    settings = Optimiser(peak_rate=1.0, warmup=0.1, final=0.05)
    rates = [rate_at(progress / 100, settings) for progress in range(101)]
    assert rates.index(max(rates)) == 10 and max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.05) and rates[0] < 0.02
