"""Answers of a model to the benchmark's problems, and which of them are right."""

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
) -> list[Generation]:
    """The model's continuation of each prompt, in the problems' order; greedy unless a method is given."""
    prompts, chosen = [problem.prompt for problem in problems], method or Greedy()
    return generate(model, tokenizer, prompts, chosen, num_loops=num_loops, max_new_tokens=LONGEST_ANSWER, batch_size=128)


def right(problems: Sequence[Problem], made: Sequence[Generation]) -> list[bool]:
    """Which answers are right by the strict reading."""
    return [strict_match(each.text, problem.gold) for problem, each in zip(problems, made, strict=True)]
