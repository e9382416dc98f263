"""The training text as batches: worked problems and bare equations, one kind a row, padded to a few widths.

Everything is a function of (seed, pool number), so a run that was interrupted continues with the text it would have
seen. Only problems of the train split are used, for the bare equations too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from loopcd.evaluation.tasks.steps import problem_at

if TYPE_CHECKING:
    from loopcd.training.recipes import Text

POOL = 1024  # rows that are sorted by length together
EQUATION_ROW = 48  # an equation row takes another equation until it has this many tokens


@dataclass(frozen=True)
class TextBatch:
    tokens: Tensor  # [batch, time]
    weights: Tensor  # [batch, time], what predicting each token counts; 0 for padding


@dataclass(frozen=True)
class TextRow:
    tokens: list[int]
    weights: list[float]


class RowMaker:
    """Rows by number. Holds the tokenizer and the token ids that mark where a result begins and ends."""

    def __init__(self, text: Text, tokenizer: PreTrainedTokenizerFast, seed: int):
        self.text, self.tokenizer, self.seed = text, tokenizer, seed
        self.equals, self.stop = (self._ids(sign)[0] for sign in (" =", "."))
        self.end = int(tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]
        self.padding = int(tokenizer.pad_token_id)  # pyright: ignore[reportArgumentType]

    def row(self, index: int, equations: float) -> TextRow:
        """TextRow `index`: bare equations with probability `equations`, else a worked problem."""
        random = Random(f"row/{self.seed}/{index}")
        return self._equation_row(index) if random.random() < equations else self._problem_row(index)

    def _problem_row(self, index: int) -> TextRow:
        problem = problem_at(self.text.variant, "train", self.seed, index)
        question, answer = self._ids(problem.prompt), [*self._ids(f" {problem.answer}"), self.end]
        return TextRow(question + answer, [self.text.question_weight] * len(question) + [1.0] * len(answer))

    def _equation_row(self, index: int) -> TextRow:
        tokens: list[int] = []
        part = 0
        while len(tokens) < EQUATION_ROW:
            # Problems of another seed: the row of the same index may stand in the text as a worked problem, too.
            problem = problem_at(self.text.variant, "train", -1 - self.seed, 8 * index + part)
            tokens += self._ids("".join(f" {equation}." for equation in problem.equations))
            part += 1
        return TextRow(tokens, self._result_weights(tokens))

    def _result_weights(self, tokens: list[int]) -> list[float]:
        """1 for what follows an equals sign, up to and with the full stop."""
        weights, inside = [], False
        for token in tokens:
            weights.append(1.0 if inside else 0.0)
            inside = (inside or token == self.equals) and token != self.stop
        return weights

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def pool_of_batches(maker: RowMaker, pool: int, equations: float) -> list[TextBatch]:
    """The batches of pool `pool`, in random order. Rows that fill no batch, or exceed the largest width, are left out."""
    rows = [maker.row(index, equations) for index in range(pool * POOL, (pool + 1) * POOL)]
    Random(f"pool/{maker.seed}/{pool}").shuffle(rows)
    by_width: dict[int, list[TextRow]] = {width: [] for width in maker.text.widths}
    for row in rows:
        fitting = [width for width in maker.text.widths if len(row.tokens) <= width]
        if fitting:
            by_width[min(fitting)].append(row)
    batches = [batch for width, fit in by_width.items() for batch in _batches(fit, width, maker)]
    Random(f"order/{maker.seed}/{pool}").shuffle(batches)
    return batches


def _batches(rows: list[TextRow], width: int, maker: RowMaker) -> Iterator[TextBatch]:
    size = max(1, maker.text.tokens_per_step // width)
    for start in range(0, len(rows) - size + 1, size):
        chosen = rows[start : start + size]
        tokens = [row.tokens + [maker.padding] * (width - len(row.tokens)) for row in chosen]
        weights = [row.weights + [0.0] * (width - len(row.weights)) for row in chosen]
        yield TextBatch(torch.tensor(tokens), torch.tensor(weights))
