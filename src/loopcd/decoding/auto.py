"""LoopCD with an amateur that is made of several early loops, so that none has to be chosen."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.reader import Reading
from loopcd.decoding.scoring import ContrastScorer
from loopcd.models.stages import Coda, LoopedModel

# early [rows, loops, n], expert [rows, n], plausible [rows, n] -> the amateur's logits [rows, n]
AmateurRule = Callable[[Tensor, Tensor, Tensor], Tensor]


def candidate_loops(num_loops: int) -> range:
    """The loops that an amateur is made of: the first half, later ones being too near to the expert."""
    return range(1, max(1, num_loops // 2) + 1)


class AutoScorer(ContrastScorer):
    """The amateur is what `rule` makes of what the early `loops` say about the plausible tokens."""

    def __init__(self, model: LoopedModel, loops: Sequence[int], rule: AmateurRule, coda: Coda, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.rule = rule
        self.watched = [EarlyLoop(model, loop, coda) for loop in loops] if self.strength > 0 else []

    def amateur_hidden(self, reading: Reading, rows: Tensor) -> Tensor:
        """[n, loops, width]"""
        return torch.stack([each.read(reading, rows) for each in self.watched], dim=1)

    def amateur_logits(self, hidden: Tensor, tokens: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
        said = [self._head(hidden[:, loop], tokens) for loop in range(hidden.shape[1])]
        return self.rule(torch.stack(said, dim=1), expert, allowed)
