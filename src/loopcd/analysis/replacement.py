"""Token replacement (Table 1): how far a right answer survives when some of its tokens are exchanged, the rest staying.

k = min(5, hard tokens, easy tokens) positions of one kind are drawn, and each gets a token drawn uniformly from the ten best of
the last loop there, as the authors' code does (the paper's text says three); or, as a variant of theirs, from the ten best of
the loop at which the margin of the final winner peaks. The best one is among them, so that some draws change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import numpy as np

from loopcd.analysis.statistics import peak_loop
from loopcd.decoding.texts import trim
from loopcd.tracing import LoopTrace

MOST = 5  # positions of an answer
BEST = 10  # candidates at a position
Source = Literal["last", "peak"]  # the loop whose best tokens they are


def replaced_answers(
    trace: LoopTrace, hard: np.ndarray, random: Random, source: Source = "last"
) -> dict[str, list[int]] | None:
    """The answer's tokens after replacing "easy" and after replacing "hard" positions; None where one kind is missing.

    `hard` is a mask over the answer's tokens.
    """
    kinds = {"easy": np.flatnonzero(~hard), "hard": np.flatnonzero(hard)}
    budget = min(MOST, *(len(positions) for positions in kinds.values()))
    if budget == 0:
        return None
    best = _best(trace, source)
    return {
        kind: _replaced(trace.token_ids.tolist(), best, random.sample(positions.tolist(), budget), random)
        for kind, positions in kinds.items()
    }


def _best(trace: LoopTrace, source: Source) -> np.ndarray:
    """[n, BEST] the candidates at each position; fewer where the vocabulary is that small."""
    if source == "last":
        return trace.top_ids[:, -1, :BEST]
    return trace.top_ids[np.arange(len(trace)), peak_loop(trace) - 1, :BEST]


def _replaced(tokens: list[int], best: np.ndarray, positions: Sequence[int], random: Random) -> list[int]:
    for position in positions:
        tokens[position] = int(random.choice(best[position]))
    return tokens


def answer_text(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Tokens as the text that is graded: without special tokens, up to the first stop string."""
    return trim(tokenizer.decode(list(tokens), skip_special_tokens=True), stop)[0]
