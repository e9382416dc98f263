"""What each method would choose at every position of a trace."""

import numpy as np

from loopcd.tracing.trace import LoopTrace


def contrast_choices(trace: LoopTrace, amateur_loop: int, strength: float) -> np.ndarray:
    """[n] int32, LoopCD's choice given the text before, for any amateur and strength, at the trace's plausibility.

    From the plausible tokens' logits alone; the normalisers cancel. Of equally good tokens the smallest id, as in decoding.
    """
    if not 1 <= amateur_loop <= trace.num_loops:
        raise ValueError(f"amateur_loop={amateur_loop}: from 1 to {trace.num_loops}, the loops of the trace")
    logits = trace.plausible_logits  # [S, L]
    return best_plausible(trace, logits[:, -1] - np.float32(strength) * logits[:, amateur_loop - 1])


def best_plausible(trace: LoopTrace, scores: np.ndarray) -> np.ndarray:
    """[n] int32, the token of each plausible set with the highest of the scores [S]; of equal ones the smallest id."""
    starts = trace.plausible_start[:-1]
    highest = np.maximum.reduceat(scores, starts)  # [n]
    best = scores == np.repeat(highest, np.diff(trace.plausible_start))
    return np.minimum.reduceat(np.where(best, trace.plausible_ids, np.iinfo(np.int32).max), starts)


def choices(trace: LoopTrace) -> dict[str, np.ndarray]:
    """Each [n] int32: greedy's choice, LoopCD's at the trace's setting, and the token that was generated."""
    return {
        "greedy": trace.winner,
        "loopcd": contrast_choices(trace, trace.amateur_loop, trace.strength),
        "chosen": trace.token_ids,
    }
