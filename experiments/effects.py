"""LoopCD against greedy on the same problems: the paper's grid, and the difference with its interval.

A grid takes one greedy run and one pass over its texts. LoopCD writes the same text as greedy unless its rule would choose
another token somewhere along it, so only answers in which that happens are generated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from transformers import PreTrainedTokenizerBase

from experiments.contests import Contests, at_loop
from experiments.dynamics import PLAUSIBILITY, answer_traces
from loopcd.decoding import Generation, LoopCD
from loopcd.evaluation.statistics import mcnemar
from loopcd.evaluation.tasks.steps import Problem
from loopcd.models import LoopedModel
from loopcd.training.accuracy import answers, right

STRENGTHS = (0.1, 0.2, 0.3)


@dataclass(frozen=True, order=True)
class Setting:
    amateur_loop: int
    strength: float


@dataclass(frozen=True)
class Effect:
    """What LoopCD changes against greedy on `problems` problems. Shares, not percent; `low`, `high`: paired, 95 %."""

    setting: Setting
    problems: int
    greedy: float
    wrong_to_right: int
    right_to_wrong: int

    @property
    def difference(self) -> float:
        return (self.wrong_to_right - self.right_to_wrong) / self.problems

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval of the paired difference."""
        changed = (self.wrong_to_right + self.right_to_wrong) / self.problems
        return 1.96 * sqrt(max(changed - self.difference**2, 0.0) / self.problems)

    @property
    def mcnemar_p(self) -> float:
        return mcnemar(self.wrong_to_right, self.right_to_wrong)


def grid(model: LoopedModel, strengths: Sequence[float] = STRENGTHS) -> list[Setting]:
    """The paper's strengths, with every amateur in the first half of the depth (at most the first three loops)."""
    amateurs = range(1, min(3, max(1, model.num_loops // 2)) + 1)
    return [Setting(amateur, strength) for amateur in amateurs for strength in strengths]


@torch.no_grad()
def effects(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    settings: Sequence[Setting],
    greedy: Sequence[Generation] | None = None,
) -> list[Effect]:
    """The effect of each setting. `greedy` are the greedy answers, where they are known already."""
    made = list(greedy) if greedy is not None else answers(model, tokenizer, problems)
    greedy_right = right(problems, made)
    diverging = _diverging(model, tokenizer, problems, made, settings)
    return [_effect(model, tokenizer, problems, greedy_right, setting, diverging[setting]) for setting in settings]


def _effect(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    greedy_right: Sequence[bool],
    setting: Setting,
    diverging: Sequence[int],
) -> Effect:
    chosen = [problems[index] for index in diverging]
    method = LoopCD(amateur_loop=setting.amateur_loop, strength=setting.strength, plausibility=PLAUSIBILITY)
    now_right = right(chosen, answers(model, tokenizer, chosen, method)) if chosen else []
    changes = [(greedy_right[index], now) for index, now in zip(diverging, now_right, strict=True)]
    share = sum(greedy_right) / len(greedy_right)
    return Effect(setting, len(problems), share, changes.count((False, True)), changes.count((True, False)))


def _diverging(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    made: Sequence[Generation],
    settings: Sequence[Setting],
) -> dict[Setting, list[int]]:
    """For each setting the problems along whose greedy text LoopCD would choose another token somewhere."""
    contests = Contests.of(answer_traces(model, tokenizer, problems, made))
    loops = range(1, model.num_loops)
    return {each: contests.changed(at_loop(each.amateur_loop), loops, each.strength) for each in settings}
