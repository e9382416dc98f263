"""Where a contrast can change anything: the contested positions of greedy texts.

A method that contrasts over the plausible set writes greedy's text unless it would choose another token somewhere along it.
So greedy's texts and their traces are enough to know which answers a setting leaves as they are; only the others need to be
generated to know its effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopcd.analysis.statistics import contested
from loopcd.decoding import rules
from loopcd.decoding.auto import AmateurRule
from loopcd.decoding.scoring import Scores
from loopcd.tracing import LoopTrace
from loopcd.tracing.trace import MOST_PLAUSIBLE


@dataclass(frozen=True)
class Contests:
    """The contested positions of many texts: R of them, k tokens in the largest plausible set, L loops."""

    text: np.ndarray  # [R] which text
    ids: Tensor  # [R, k], greedy's choice first
    logits: Tensor  # [R, L, k]
    allowed: Tensor  # [R, k] bool, False for padding
    cut: frozenset[int] = frozenset()  # texts with a plausible set of which the trace keeps only the best

    @classmethod
    def of(cls, traces: Iterable[LoopTrace]) -> Contests:
        """In the traces' order, each read once."""
        text: list[int] = []
        cut: set[int] = set()
        sets: list[tuple[np.ndarray, np.ndarray]] = []  # ids [n], logits [n, L]
        for number, trace in enumerate(traces):
            if (trace.plausible_count > MOST_PLAUSIBLE).any():
                cut.add(number)
            for token in contested(trace).nonzero()[0]:
                own = trace.plausible(int(token))
                text.append(number)
                sets.append((trace.plausible_ids[own], trace.plausible_logits[own]))
        size, loops = (max(len(ids) for ids, _ in sets), sets[0][1].shape[1]) if sets else (2, 1)
        found = cls(
            np.array(text, dtype=int),
            torch.zeros(len(sets), size, dtype=torch.long),
            torch.zeros(len(sets), loops, size),
            torch.zeros(len(sets), size, dtype=torch.bool),
            frozenset(cut),
        )
        for row, (ids, logits) in enumerate(sets):
            found.ids[row, : len(ids)] = torch.from_numpy(ids)
            found.logits[row, :, : len(ids)] = torch.from_numpy(logits).T
            found.allowed[row, : len(ids)] = True
        return found

    def __len__(self) -> int:
        return len(self.text)

    def choices(self, rule: AmateurRule, loops: range, strength: float) -> Tensor:
        """[R], the token that the contrast chooses, with the amateur that `rule` makes of these early loops."""
        expert = self.logits[:, -1]
        amateur = rule(self.logits[:, loops.start - 1 : loops.stop - 1], expert, self.allowed)
        values = rules.contrast(expert, amateur, strength, self.allowed)
        return Scores(values, self.ids, int(self.ids.max()) + 1, self.allowed[:, 1], self.allowed[:, 1]).best()

    def changed(self, rule: AmateurRule, loops: range, strength: float) -> list[int]:
        """The texts along which the contrast chooses another token than greedy somewhere, or may do so."""
        if not len(self):
            return []
        flipped = self.choices(rule, loops, strength) != self.ids[:, 0]
        return sorted({*self.text[flipped.numpy()].tolist(), *self.cut})


def at_loop(loop: int) -> AmateurRule:
    """The fixed amateur, as a rule over loops that are counted from 1."""
    return lambda early, expert, allowed: early[:, loop - 1]
