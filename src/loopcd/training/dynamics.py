"""What the loops of a model say about its own answers: which tokens are hard, contested, or settled early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loopcd.decoding import Generation
from loopcd.decoding.rules import confidence_drop, margin, plausible
from loopcd.evaluation.tasks.steps import Problem
from loopcd.models import LoopedModel, loop_logits

HARD_DROP = 1.5
PLAUSIBILITY = 0.1


@dataclass(frozen=True)
class Dynamics:
    """Shares of the positions of given answers.

    hard        the last loop's token once led by at least 1.5 more than it does in the end
    contested   more than one token is at least a tenth as likely as the likeliest
    agreement   by loop: stopping there would give the last loop's token
    """

    positions: int
    hard: float
    contested: float
    agreement: tuple[float, ...]


def dynamics(
    model: LoopedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], made: Sequence[Generation]
) -> Dynamics:
    """Over the answers `made` that the model gave to `problems`."""
    hard = contested = positions = 0
    agreeing = torch.zeros(model.num_loops)
    for logits in answer_logits(model, tokenizer, problems, made):  # [loops, answer, vocab]
        last = logits[-1]
        chosen = last.argmax(dim=-1)  # [answer]
        margins = margin(logits, chosen.expand(logits.shape[:2]))  # [loops, answer]
        hard += int((confidence_drop(margins.T) >= HARD_DROP).sum())
        contested += int((plausible(last, PLAUSIBILITY).sum(dim=-1) > 1).sum())
        agreeing += (logits.argmax(dim=-1) == chosen).sum(dim=-1)
        positions += len(chosen)
    return Dynamics(positions, hard / positions, contested / positions, tuple((agreeing / positions).tolist()))


def answer_logits(
    model: LoopedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], made: Sequence[Generation]
) -> Iterator[Tensor]:
    """For each answer the logits [loops, answer, vocab] that choose its tokens."""
    for problem, each in zip(problems, made, strict=True):
        prompt = tokenizer(problem.prompt).input_ids
        seen = torch.tensor([prompt + each.token_ids[:-1]])  # nothing is chosen after the last token
        yield loop_logits(model, seen)[0, :, len(prompt) - 1 :]
