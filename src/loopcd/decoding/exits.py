"""Leaving the loop early, row by row, so that the loops are really saved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopcd.decoding import checks
from loopcd.decoding.rules import relative_change
from loopcd.models.stages import LoopedModel, LoopState, wide


@dataclass(frozen=True)
class EarlyExit:
    """Stop a token's loops when the latent hardly changes any more, or when the model's own gate says so.

    `criterion="latent"`: at the first loop r ≥ `min_loops` with mean_j ‖h_r − h_(r−1)‖ / ‖h_r‖ < `threshold` (τ), the mean
    being over the tokens of the pass: a whole prompt leaves at once, a generated token by itself.
    `criterion="gate"` (Ouro): when the gate's cumulated exit probability reaches `threshold`. A threshold of 0 never leaves by
    the first criterion, and at the first loop by the second. `min_loops=None` is as few as the method allows: one more than
    its early loop where it has one (LoopCD, LoopGuidance), else 0.
    `exited` says how later tokens see, at later loops, one that left: by its `"last"` computed entry, or not
    (`"skip"`, the public Huginn code's default).
    """

    threshold: float = 0.03
    min_loops: int | None = None
    criterion: Literal["latent", "gate"] = "latent"
    exited: Literal["last", "skip"] = "last"

    def __post_init__(self) -> None:
        checks.number("threshold", self.threshold, 0)
        if self.min_loops is not None:
            checks.whole("min_loops", self.min_loops, 0)
        checks.one_of("criterion", self.criterion, ("latent", "gate"))
        checks.one_of("exited", self.exited, ("last", "skip"))

    def check(self, model: LoopedModel) -> None:
        if self.criterion == "gate" and not hasattr(model, "gate_logits"):
            raise ValueError(f'criterion="gate": {type(model).__name__} has no exit gate; use "latent"')
        implementation = model.config._attn_implementation or ""
        if self.exited == "skip" and "flash" in implementation:
            raise ValueError(f'exited="skip" needs masks that attn_implementation={implementation!r} does not take: use "sdpa"')


class Judge:
    """Says after each loop which rows leave; the gate's probability is cumulated over a pass."""

    def __init__(self, rule: EarlyExit, model: LoopedModel, counted: Tensor | None) -> None:
        self.rule, self.model = rule, model
        self.counted = counted  # [rows, time] bool, False for padding; None: every token counts
        self.staying: Tensor | None = None  # [rows, time], the gate's probability of still being in the loop

    def leaving(self, before: LoopState, after: LoopState) -> Tensor | None:
        """[rows] bool; None: no row leaves."""
        if self.rule.criterion == "gate":
            stop = torch.sigmoid(wide(self.model.gate_logits(after)))  # pyright: ignore[reportCallIssue]
            self.staying = 1 - stop if self.staying is None else self.staying * (1 - stop)
        if after.loop < (self.rule.min_loops or 0):
            return None
        if self.staying is not None:
            reached = 1 - self._mean(self.staying) >= self.rule.threshold
        else:
            reached = self._mean(relative_change(wide(before.hidden), wide(after.hidden))) < self.rule.threshold
        return reached if bool(reached.any()) else None

    def _mean(self, per_token: Tensor) -> Tensor:
        if self.counted is None:
            return per_token[:, 0] if per_token.shape[1] == 1 else per_token.mean(dim=1)
        return per_token.masked_fill(~self.counted, 0).sum(dim=1) / self.counted.sum(dim=1)

    def keep(self, index: Tensor) -> None:
        self.counted = None if self.counted is None else self.counted[index]
        self.staying = None if self.staying is None else self.staying[index]


def run_loops(
    model: LoopedModel,
    state: LoopState,
    num_loops: int,
    rule: EarlyExit | None = None,
    watch: Callable[[LoopState], None] | None = None,
) -> tuple[LoopState, Tensor]:
    """The state with which every row ends, and the loops [batch] that each row ran. `watch` sees every state.

    A row that leaves takes no further part: the next loops run for the remaining rows only.
    """
    batch, device = state.hidden.shape[0], state.hidden.device
    ran = torch.full((batch,), num_loops)
    whole = state.tokens
    judge = None if rule is None else Judge(rule, model, _counted(state))
    ended: Tensor | None = None  # [batch, time, width], filled as rows leave
    while state.loop < num_loops:
        before, state = state, model.advance(state)
        if watch is not None:
            watch(state)
        if judge is None or state.loop == num_loops:
            continue
        leaving = judge.leaving(before, state)
        if leaving is None:
            continue
        if ended is None and bool(leaving.all()):  # the usual end of a single row, without the work of telling rows apart
            if whole.cache is not None:
                whole.cache.leave(whole.span, state.loop, device)
            return state, ran.fill_(state.loop)
        rows = torch.arange(batch, device=device) if state.tokens.span.rows is None else state.tokens.span.rows
        ended = torch.empty_like(state.hidden[:1]).repeat(batch, 1, 1) if ended is None else ended
        gone, staying = leaving.nonzero().squeeze(1), (~leaving).nonzero().squeeze(1)
        ended[rows[gone]] = state.hidden[gone]
        ran[rows[gone].cpu()] = state.loop
        if whole.cache is not None:
            whole.cache.leave(state.tokens.span.keep(gone), state.loop, device)
        if not len(staying):
            return LoopState(ended, state.loop, whole), ran
        state = state.keep(staying)
        judge.keep(staying)
    if ended is None:
        return state, ran
    assert state.tokens.span.rows is not None
    ended[state.tokens.span.rows] = state.hidden
    return LoopState(ended, num_loops, whole), ran


def _counted(state: LoopState) -> Tensor | None:
    """Which tokens of the pass are not padding: [rows, time], or None if all are."""
    cache, span = state.tokens.cache, state.tokens.span
    if cache is None or cache.valid is None:
        return None
    if span.columns is not None:
        return cache.valid.gather(1, span.columns)
    return cache.valid[:, span.start : span.stop]
