"""Answers of a model to the benchmark's problems, and their accuracy loop by loop."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from loopcd.decoding import Generation, Greedy, Method, generate
from loopcd.evaluation.graders import strict_match
from loopcd.evaluation.tasks.steps import Problem
from loopcd.evaluation.tasks.word_problems import LONGEST_ANSWER
from loopcd.models import LoopedModel


def answers(
    model: LoopedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    method: Method | None = None,
    num_loops: int | None = None,
    batch_size: int = 128,
) -> list[Generation]:
    """The model's continuation of each prompt, in the problems' order; greedy unless a method is given."""
    return generate(
        model,
        tokenizer,
        [problem.prompt for problem in problems],
        method or Greedy(),
        num_loops=num_loops,
        max_new_tokens=LONGEST_ANSWER,
        batch_size=batch_size,
    )


def right(problems: Sequence[Problem], made: Sequence[Generation]) -> list[bool]:
    """Which answers are right by the strict reading."""
    return [strict_match(each.text, problem.gold) for problem, each in zip(problems, made, strict=True)]


def right_by_loop(
    model: LoopedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], loops: Sequence[int]
) -> dict[int, list[bool]]:
    """For each number of loops, which problems the model answers right when it is stopped there."""
    return {loop: right(problems, answers(model, tokenizer, problems, num_loops=loop)) for loop in loops}


def accuracy_by_loop(
    model: LoopedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], loops: Sequence[int]
) -> dict[int, float]:
    """The share of right answers after each number of loops."""
    by_loop = right_by_loop(model, tokenizer, problems, loops)
    return {loop: sum(each) / len(each) for loop, each in by_loop.items()}
