"""What the loops of a model say about its own answers: which tokens are hard, contested, or settled early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from loopcd.analysis import statistics
from loopcd.decoding import Generation
from loopcd.evaluation.tasks.steps import Problem
from loopcd.models import LoopedModel
from loopcd.tracing import LoopTrace, Written, trace_texts

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
    agreeing = np.zeros(model.num_loops)
    for trace in answer_traces(model, tokenizer, problems, made):
        hard += int(statistics.hard_tokens(trace).sum())
        contested += int(statistics.contested(trace).sum())
        agreeing += np.sum(trace.margin >= 0, axis=0)
        positions += len(trace)
    return Dynamics(positions, hard / positions, contested / positions, tuple((agreeing / positions).tolist()))


def answer_traces(
    model: LoopedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], made: Sequence[Generation]
) -> Iterator[LoopTrace]:
    """What the loops say about each answer."""
    items = (Written.of(problem.prompt, each) for problem, each in zip(problems, made, strict=True))
    return trace_texts(model, tokenizer, items, plausibility=PLAUSIBILITY)
