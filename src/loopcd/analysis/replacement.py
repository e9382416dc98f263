"""Token replacement (Table 1): how far a right answer survives when some of its tokens are exchanged, the rest staying.

k = min(5, hard tokens, easy tokens) positions of one kind are drawn, and each gets a token drawn uniformly from the three
best of the last loop there. The best one is among them, so that about a third of the draws change nothing: as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from loopcd.decoding.texts import trim
from loopcd.tracing import LoopTrace

MOST = 5  # positions of an answer
BEST = 3  # candidates at a position


def replaced_answers(trace: LoopTrace, hard: np.ndarray, random: Random) -> dict[str, list[int]] | None:
    """The answer's tokens after replacing "easy" and after replacing "hard" positions; None where one kind is missing.

    `hard` is a mask over the answer's tokens.
    """
    kinds = {"easy": np.flatnonzero(~hard), "hard": np.flatnonzero(hard)}
    budget = min(MOST, *(len(positions) for positions in kinds.values()))
    if budget == 0:
        return None
    return {kind: _replaced(trace, random.sample(positions.tolist(), budget), random) for kind, positions in kinds.items()}


def _replaced(trace: LoopTrace, positions: Sequence[int], random: Random) -> list[int]:
    tokens = trace.token_ids.tolist()
    for position in positions:
        tokens[position] = int(random.choice(trace.top_ids[position, -1, :BEST]))
    return tokens


def answer_text(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Tokens as the text that is graded: without special tokens, up to the first stop string."""
    return trim(tokenizer.decode(list(tokens), skip_special_tokens=True), stop)[0]
