"""The paper's statistics: pure functions of a trace, named as there. Arrays are over the trace's tokens.

y* is the trace's `winner`, the best token of the last loop L; m_i its margin after loop i. For a greedy text y* is the token
that was generated.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from loopcd.decoding.rules import confidence_drop
from loopcd.decoding.selective import HARD_DROP, kind_numeric, kind_operator
from loopcd.tracing import LoopTrace


def trace_entropy(trace: LoopTrace) -> float:
    """H_tr = 1/N Σ_t H_t: the mean entropy, in nats, of the last loop's distributions."""
    return float(trace.entropy[:, -1].mean(dtype=np.float64))


def drop(trace: LoopTrace) -> np.ndarray:
    """[n] d = max_i m_i − m_L: how far y* has fallen behind its best lead."""
    return confidence_drop(torch.from_numpy(trace.margin)).numpy()


def hard_tokens(trace: LoopTrace, threshold: float = HARD_DROP) -> np.ndarray:
    """[n] bool: d ≥ ε. The others are easy."""
    return drop(trace) >= threshold


def peak_loop(trace: LoopTrace) -> np.ndarray:
    """[n] argmax_i m_i, counted from 1; of equal ones the first."""
    return trace.margin.argmax(axis=1) + 1


def margin_flips(trace: LoopTrace) -> np.ndarray:
    """[n] bool: with z̃ = z_L − λ z_a over the whole vocabulary, z̃(y*) < max over v ≠ y* of z̃(v).

    At the amateur a and the strength λ that the trace was made for.
    """
    return np.not_equal(trace.unconstrained, trace.winner)


def late_flips(trace: LoopTrace) -> np.ndarray:
    """[n] bool, Late-Flip: y* is not top-1 at least once in the latter half of the loops (17 to 32 of 32)."""
    return np.any(trace.margin[:, first_late(trace) :] < 0, axis=1)


def early_overconfident(trace: LoopTrace, threshold: float = HARD_DROP) -> np.ndarray:
    """[n] bool: hard, and y* is top-1 throughout the latter half (not a Late-Flip)."""
    return hard_tokens(trace, threshold) & ~late_flips(trace)


def late_alternatives(trace: LoopTrace) -> np.ndarray:
    """[n] int32: at a Late-Flip the most frequent other top-1 of the latter half, −1 elsewhere.

    Of equally frequent ones that which was top-1 last; the paper does not say.
    """
    found = np.full(len(trace), -1, np.int32)
    for token in late_flips(trace).nonzero()[0]:
        others = [each for each in trace.top_ids[token, first_late(trace) :, 0].tolist() if each != trace.winner[token]]
        counts = Counter(reversed(others))  # in the order of first meeting, which is from the last loop backwards
        found[token] = counts.most_common(1)[0][0]
    return found


def first_late(trace: LoopTrace) -> int:
    """The index of the first loop of the latter half."""
    return trace.num_loops // 2


def contested(trace: LoopTrace) -> np.ndarray:
    """[n] bool: more than one token is plausible."""
    return trace.plausible_count > 1


def numeric_tokens(trace: LoopTrace) -> np.ndarray:
    """[n] bool: y* is digits and nothing else."""
    return _of_kind(trace, kind_numeric)


def operator_tokens(trace: LoopTrace) -> np.ndarray:
    """[n] bool: y* is a sign of arithmetic."""
    return _of_kind(trace, kind_operator)


def _of_kind(trace: LoopTrace, kind: Callable[[str], bool]) -> np.ndarray:
    return np.array([kind(text) for text in winner_texts(trace)], dtype=bool)


def winner_texts(trace: LoopTrace) -> list[str]:
    """The text of y* at each position."""
    if not trace.token_texts:
        raise ValueError("the trace was made without a tokenizer: it does not know its tokens' texts")
    return [trace.token_texts[token] for token in trace.winner.tolist()]


def hard_token_types(trace: LoopTrace, threshold: float = HARD_DROP) -> Counter[str]:
    """How often each text is a hard token, blanks around it left away where there is anything else."""
    hard = hard_tokens(trace, threshold)
    return Counter(text.strip() or text for text, chosen in zip(winner_texts(trace), hard, strict=True) if chosen)
