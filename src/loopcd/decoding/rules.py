"""The decoding rules: pure functions of logits. The paper's formulas are here, and nowhere else.

Every function takes logits in the last dimension, of all tokens or of any subset that holds the plausible ones: the scores
are normalised over the plausible set at the end, so that the normalisers of the two distributions cancel.
"""

import math
from typing import Any

import torch
from torch import Tensor

IMPOSSIBLE = float("-inf")


def plausible(expert: Tensor, plausibility: float | Tensor) -> Tensor:
    """V_head = {v : p_e(v) ≥ α · max p_e}, as a mask; `expert` are the logits of p_e, `plausibility` is α (or [rows, 1])."""
    shift = plausibility.log() if isinstance(plausibility, Tensor) else math.log(plausibility)
    return expert >= expert.amax(dim=-1, keepdim=True) + shift


def contrast(expert: Tensor, amateur: Tensor, strength: float | Tensor, allowed: Tensor) -> Tensor:
    """LoopCD: s(v) = log p_e(v) − λ log p_a(v) for v in V_head, −∞ elsewhere; then log softmax(s).

    `expert` are the logits of p_e (loop ℓ_e), `amateur` those of p_a (loop ℓ_a), `allowed` is V_head; `strength` is λ, one
    for all rows or [rows, 1].
    """
    scores = expert.log_softmax(dim=-1) - strength * amateur.log_softmax(dim=-1)
    return scores.masked_fill(~allowed, IMPOSSIBLE).log_softmax(dim=-1)


def contrast_of(expert: Any, amateur: Any, strength: Any) -> Any:
    """s(v) of `contrast` for tokens of V_head, up to what is the same for all of them, from their two logits: any numbers."""
    return expert - strength * amateur


def mean_amateur(early: Tensor, expert: Tensor, allowed: Tensor) -> Tensor:
    """The amateur's logits [rows, n] from those of several loops, `early` [rows, loops, n]: their mean.

    That is the geometric mean of the loops' distributions. `expert` and V_head, which other such rules look at, do not matter.
    """
    return early.mean(dim=1)


def guidance(conditional: Tensor, unconditional: Tensor, weight: float, allowed: Tensor) -> Tensor:
    """MTI: s(v) = (1 − ω) log p_uc(v) + ω log p_cond(v) for v in V_head, −∞ elsewhere; then log softmax(s).

    Unlike in `contrast`, `weight` is ω, and both arguments are logits of the whole vocabulary.
    """
    scores = (1 - weight) * unconditional.log_softmax(dim=-1) + weight * conditional.log_softmax(dim=-1)
    return scores.masked_fill(~allowed, IMPOSSIBLE).log_softmax(dim=-1)


def loop_guidance(expert: Tensor, early: Tensor, weight: float | Tensor) -> Tensor:
    """LoopGuidance: z_R + ω (z_R − z_b), of all tokens. `expert` is z_R, the last loop's logits, `early` is z_b; `weight` is ω,
    one for all rows or [rows, 1]."""
    return expert + weight * (expert - early)


def adaptive_weight(expert: Tensor, cap: float) -> Tensor:
    """ω = cap · (1 − (p₁ − p₂)), [rows, 1]: p₁ and p₂ are the two highest probabilities of the last loop."""
    best = expert.topk(2, dim=-1).values
    first, second = (best - expert.logsumexp(dim=-1, keepdim=True)).exp().split(1, dim=-1)
    return cap * (1 - (first - second))


def noisy(hidden: Tensor, noise: float, epsilon: Tensor) -> Tensor:
    """NoiseCD: h_noise = h + σ · RMS(h) · ε, the RMS over the hidden dimension; `noise` is σ, `epsilon` is ε ~ N(0, I)."""
    rms = hidden.square().mean(dim=-1, keepdim=True).sqrt()
    return hidden + noise * rms * epsilon


def entropy(logits: Tensor) -> Tensor:
    """H = −Σ_v p(v) log p(v), in nats."""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p.masked_fill(log_p == IMPOSSIBLE, 0.0)).sum(dim=-1)


def margin(logits: Tensor, winner: Tensor) -> Tensor:
    """m = z(y*) − max_{v ≠ y*} z(v): how far the token y* = `winner` [...] is ahead of the best other one."""
    own = logits.gather(-1, winner[..., None]).squeeze(-1)
    others = logits.scatter(-1, winner[..., None], IMPOSSIBLE)
    return own - others.amax(dim=-1)


def confidence_drop(margins: Tensor) -> Tensor:
    """d = m_peak − m_final of margins [..., loops]: a token is hard where this is at least ε (1.5 in the paper)."""
    return margins.amax(dim=-1) - margins[..., -1]


def relative_change(previous: Tensor, current: Tensor) -> Tensor:
    """‖h_r − h_(r−1)‖ / ‖h_r‖ over the last dimension: what the exit rule averages over tokens."""
    return torch.linalg.vector_norm(current - previous, dim=-1) / torch.linalg.vector_norm(current, dim=-1)
