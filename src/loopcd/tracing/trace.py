"""`LoopTrace`: what every loop said about every token of one generated text."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, get_type_hints

import numpy as np

MOST_PLAUSIBLE = 64  # larger plausible sets are cut to their best tokens


@dataclass(frozen=True, eq=False)
class LoopTrace:
    """One text of n tokens, seen by each of the L loops. Arrays are numpy's; index i − 1 is the model *stopped after loop i*.

    Shapes are of n tokens, p of the prompt, L loops, K top tokens, S plausible tokens in all.

    All numbers come from one pass over the prompt and the whole text at full depth, from raw logits (no temperature, no
    processors). Where tokens left the loop early, `exit_loop` says so, and the numbers are still those of the full depth:
    what the loops would have said about this text, not what the exiting model saw (`full_depth` is False then).
    """

    prompt: str
    text: str  # as `Generation.text`: no special tokens, up to the first stop string
    prompt_ids: Annotated[np.ndarray, "int32", "p"]
    token_ids: Annotated[np.ndarray, "int32", "n"]  # the generated tokens
    pieces: tuple[str, ...]  # n texts that join to the text with special tokens; one that completes no character is empty
    exit_loop: Annotated[np.ndarray, "int16", "n"]  # loops that the method which generated it ran for the token
    winner: Annotated[np.ndarray, "int32", "n"]  # y*: the best token of the last loop
    logit: Annotated[np.ndarray, "float32", "nL"]  # z_i(y*)
    runner_up: Annotated[np.ndarray, "float32", "nL"]  # max over v ≠ y* of z_i(v)
    log_norm: Annotated[np.ndarray, "float32", "nL"]  # logsumexp of z_i
    entropy: Annotated[np.ndarray, "float32", "nL"]  # nats
    change: Annotated[np.ndarray, "float32", "nL"]  # ‖h_i − h_(i−1)‖ / ‖h_i‖ of the latent; h_0 is the initial state
    top_ids: Annotated[np.ndarray, "int32", "nLK"]  # the best tokens of each loop, best first
    top_logits: Annotated[np.ndarray, "float32", "nLK"]
    plausible_count: Annotated[np.ndarray, "int32", "n"]  # the plausible set's true size; kept are at most the 64 best
    plausible_ids: Annotated[np.ndarray, "int32", "S"]  # the expert's best first, so the first is y*
    plausible_logits: Annotated[np.ndarray, "float32", "SL"]  # what every loop says of them
    unconstrained: Annotated[np.ndarray, "int32", "n"]  # argmax_v z_L(v) − strength · z_amateur(v); y* where it is as good
    amateur_loop: int
    strength: float
    plausibility: float
    num_loops: int
    model: str
    method: str
    init_seed: int | None = None  # of the initial state (Huginn); None: zero
    token_texts: dict[int, str] = field(default_factory=dict)  # of every id in the trace, where there was a tokenizer
    extra: dict[str, Any] = field(default_factory=dict)  # JSON: gold answer, item, right or wrong, …

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_values()

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoopTrace):
            return NotImplemented
        return all(_same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def margin(self) -> np.ndarray:
        """[n, L], m_i = z_i(y*) − max over v ≠ y* of z_i(v)"""
        return self.logit - self.runner_up

    @property
    def probability(self) -> np.ndarray:
        """[n, L], p_i(y*)"""
        return np.exp(self.logit - self.log_norm)

    @property
    def full_depth(self) -> bool:
        """Whether every token ran all loops when it was generated, so that the trace is what the method saw."""
        return bool((self.exit_loop == self.num_loops).all())

    @cached_property
    def plausible_start(self) -> np.ndarray:
        """[n + 1] int32: token t's plausible set is start[t] : start[t + 1] of `plausible_ids` and `plausible_logits`."""
        return np.concatenate([[0], np.minimum(self.plausible_count, MOST_PLAUSIBLE).cumsum()]).astype(np.int32)

    def plausible(self, token: int) -> slice:
        """Where token t's plausible set stands in `plausible_ids` and `plausible_logits`."""
        return slice(int(self.plausible_start[token]), int(self.plausible_start[token + 1]))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def _check_shapes(self) -> None:
        sizes = {"n": len(self.token_ids), "L": self.num_loops}
        for name, (dtype, shape) in ARRAYS.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != len(shape):
                raise ValueError(f"{name}: an array of {dtype} with {len(shape)} dimensions, not {_told(array)}")
            wanted = tuple(sizes.setdefault(letter, size) for letter, size in zip(shape, array.shape, strict=True))
            if array.shape != wanted:
                raise ValueError(f"{name} has shape {array.shape}, the other arrays ask for {wanted}")
        if sizes["n"] == 0 or len(self.pieces) != sizes["n"]:
            raise ValueError(f"a trace of {sizes['n']} tokens with {len(self.pieces)} pieces: as many of both, at least 1")

    def _check_values(self) -> None:
        if not 1 <= self.amateur_loop <= self.num_loops:
            raise ValueError(f"amateur_loop={self.amateur_loop}: from 1 to {self.num_loops}")
        if not 0 < self.plausibility <= 1 or not self.strength >= 0:
            raise ValueError(f"plausibility={self.plausibility}, strength={self.strength}: in (0, 1], and at least 0")
        if self.exit_loop.min() < 1 or self.exit_loop.max() > self.num_loops:
            raise ValueError(f"exit_loop: from 1 to {self.num_loops}, not {self.exit_loop.min()} to {self.exit_loop.max()}")
        if self.plausible_count.min() < 1 or self.plausible_start[-1] != len(self.plausible_ids):
            raise ValueError(f"plausible_count: the size of each plausible set, of which the {MOST_PLAUSIBLE} best are kept")
        if (self.plausible_ids[self.plausible_start[:-1]] != self.winner).any():
            raise ValueError("winner: the first token of each plausible set")
        for name, (dtype, _) in ARRAYS.items():
            if dtype == "float32" and not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds numbers that are not finite: the model computes none, or infinite ones")
        if (self.logit[:, -1] < self.runner_up[:, -1]).any():
            raise ValueError("winner: the last loop has a better token")
        if (np.diff(self.top_logits, axis=2) > 0).any():
            raise ValueError("top_logits: the best first")


ARRAYS: dict[str, tuple[str, str]] = {  # name: (type, shape)
    name: hint.__metadata__
    for name, hint in get_type_hints(LoopTrace, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


# What each method would choose at every position of a trace


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


def _same(one: Any, other: Any) -> bool:
    """Arrays of one name have one type."""
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def _told(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
