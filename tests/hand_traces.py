"""Traces by hand: from a small table of logits, token by token, with nothing taken from `loopcd.tracing` but the class."""

from collections.abc import Sequence
from math import exp, log
from typing import Any

import numpy as np

from loopcd.tracing import LoopTrace


def hand_trace(
    logits: Any,
    tokens: Sequence[int] | None = None,
    *,
    texts: Sequence[str] = (),
    amateur_loop: int = 1,
    strength: float = 0.3,
    plausibility: float = 0.1,
    top: int = 2,
    changes: Any = None,
    exit_loop: Sequence[int] | None = None,
    **facts: Any,
) -> LoopTrace:
    """The trace of logits [token][loop][vocabulary]; the winners are the tokens unless others are given."""
    table = np.array(logits, dtype=np.float64)
    n, loops, vocabulary = table.shape
    winner = [_best(row[-1]) for row in table]
    sets = [_plausible(row[-1], plausibility) for row in table]
    kept = [ids[:64] for ids in sets]
    order = [[sorted(range(vocabulary), key=lambda v, z=z: (-z[v], v))[:top] for z in row] for row in table]
    chosen = winner if tokens is None else list(tokens)
    names = list(texts) if texts else [f"<{token}>" for token in range(vocabulary)]
    return LoopTrace(
        **{
            "prompt": "?",
            "prompt_ids": np.zeros(1, np.int32),
            "text": "".join(names[token] for token in chosen),
            "model": "by hand",
            "method": "greedy",
            **facts,
        },
        pieces=tuple(names[token] for token in chosen),
        token_ids=np.array(chosen, np.int32),
        exit_loop=np.array(exit_loop or [loops] * n, np.int16),
        winner=np.array(winner, np.int32),
        logit=_floats([[z[y] for z in row] for row, y in zip(table, winner, strict=True)]),
        runner_up=_floats([[max(np.delete(z, y)) for z in row] for row, y in zip(table, winner, strict=True)]),
        log_norm=_floats([[log(sum(exp(x) for x in z)) for z in row] for row in table]),
        entropy=_floats([[_entropy(z) for z in row] for row in table]),
        change=_floats(np.ones((n, loops)) if changes is None else changes),
        top_ids=np.array(order, np.int32),
        top_logits=_floats(
            [[z[ids] for z, ids in zip(row, each, strict=True)] for row, each in zip(table, order, strict=True)]
        ),
        plausible_count=np.array([len(ids) for ids in sets], np.int32),
        plausible_ids=np.array([v for ids in kept for v in ids], np.int32),
        plausible_logits=_floats([row[:, v] for row, ids in zip(table, kept, strict=True) for v in ids]),
        unconstrained=np.array([_unconstrained(row, amateur_loop, strength) for row in table], np.int32),
        amateur_loop=amateur_loop,
        strength=strength,
        plausibility=plausibility,
        num_loops=loops,
        token_texts=dict(enumerate(names)),
    )


def _best(z: np.ndarray) -> int:
    return min(range(len(z)), key=lambda v: (-z[v], v))


def _plausible(z: np.ndarray, plausibility: float) -> list[int]:
    likeliest = max(exp(x) for x in z)
    return sorted((v for v in range(len(z)) if exp(z[v]) >= plausibility * likeliest), key=lambda v: (-z[v], v))


def _entropy(z: np.ndarray) -> float:
    total = sum(exp(x) for x in z)
    p = [exp(x) / total for x in z]
    return -sum(x * log(x) for x in p if x > 0)


def _unconstrained(row: np.ndarray, amateur_loop: int, strength: float) -> int:
    return _best(row[-1] - strength * row[amateur_loop - 1])


def _floats(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float32)
