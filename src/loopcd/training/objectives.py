"""Training objectives of looped models, by the names of the papers that introduced the two families.

An objective runs the stages itself, since the number of loops, the loops that are backpropagated through and the loops
that are read out are what distinguishes one way of training a looped model from another.
"""

from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from loopcd.models import LoopedModel, OuroForCausalLM
from loopcd.models.ouro import exit_pdf
from loopcd.training.rows import TextBatch


class Objective(Protocol):
    def __call__(self, model: LoopedModel, batch: TextBatch, random: Random) -> Tensor: ...


@dataclass(frozen=True)
class RecurrentDepth:
    """Huginn's: a random number of loops for each step, truncated backpropagation, the loss at the last loop only.

    mean_loops, spread   loops follow a Poisson distribution whose rate is log-normal, plus one
    backpropagated       gradients flow through this many of the last loops
    noisy_start          share of steps that start from a Gaussian state; the others start from zero, as decoding does
    """

    mean_loops: int = 8
    spread: float = 0.5
    backpropagated: int = 4
    noisy_start: float = 0.5

    def __call__(self, model: LoopedModel, batch: TextBatch, random: Random) -> Tensor:
        loops = self.sample_loops(random)
        start = random.getrandbits(31) if random.random() < self.noisy_start else None
        state = model.begin(batch.tokens, init_seed=start)
        without_gradient = max(0, loops - self.backpropagated)
        with torch.no_grad():
            for _ in range(without_gradient):
                state = model.advance(state)
        for _ in range(loops - without_gradient):
            state = model.advance(state)
        return weighted_mean(token_losses(model.head(model.readout(state)), batch), batch)

    def sample_loops(self, random: Random) -> int:
        """At least one loop; `mean_loops` on average."""
        rate = random.gauss(log(self.mean_loops - 1) - self.spread**2 / 2, self.spread)
        return 1 + _poisson(exp(rate), random)


@dataclass(frozen=True)
class ExpectedExit:
    """Ouro's first stage: the loss expected under the gate's exit distribution, less `entropy` times its entropy.

    The entropy keeps the gate from settling on one loop before the loops have learned to differ. All loops are run,
    and gradients flow through all of them.
    """

    entropy: float = 0.05

    def __call__(self, model: LoopedModel, batch: TextBatch, random: Random) -> Tensor:
        if not isinstance(model, OuroForCausalLM):
            raise TypeError(f"ExpectedExit needs a model with an exit gate (Ouro), got {type(model).__name__}")
        state = model.begin(batch.tokens)
        losses, gates = [], []
        for _ in range(model.num_loops):
            state = model.advance(state)
            losses.append(token_losses(model.head(model.readout(state)), batch))
            gates.append(model.gate_logits(state)[:, :-1])
        exits = exit_pdf(torch.stack(gates, dim=-1))  # [batch, time - 1, loops]
        expected = (exits * torch.stack(losses, dim=-1)).sum(dim=-1)
        uncertainty = -(exits * exits.clamp_min(1e-9).log()).sum(dim=-1)
        return weighted_mean(expected - self.entropy * uncertainty, batch)


def token_losses(logits: Tensor, batch: TextBatch) -> Tensor:
    """Cross-entropy of each next token [batch, time - 1]."""
    flat = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none")
    return flat.view(batch.tokens.shape[0], -1)


def weighted_mean(values: Tensor, batch: TextBatch) -> Tensor:
    weights = batch.weights[:, 1:]
    return (values * weights).sum() / weights.sum()


def _poisson(rate: float, random: Random) -> int:
    """By multiplication of uniforms; rates are small here."""
    limit, product, count = exp(-rate), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count
